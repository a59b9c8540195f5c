"""A classifier of vectors with the manners of scikit-learn, which keeps learning.

scikit-learn need not be installed, so nothing is inherited from it. Its tools ask an estimator for parameters, tags and
exceptions of its own; these are written here, and its exceptions are used if the caller has loaded it.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime
from typing import Annotated, Any

import numpy as np

from graspcl.checks import Array, Count, Natural, Range, check_parameters
from graspcl.errors import GraspError
from graspcl.learner import Learner, learners
from graspcl.policy import Budget
from graspcl.random import generator, torch_generator

_KINDS = {bool, int, float, str, bytes, date, datetime}  # of labels
Passes = Annotated[float, Range(0, 10**6)]
_LARGEST = 1e6  # a standardised feature beyond it is cut off, so that no product overflows


class InvalidInput(GraspError, ValueError):
    """Samples, labels or parameters that cannot be used. scikit-learn's tools expect a ValueError."""


class _NotFitted(GraspError, ValueError, AttributeError):
    """The classifier has learned nothing yet."""


@contextmanager
def _value_errors() -> Iterator[None]:
    """Let every error be a ValueError too: parameters or samples are wrong."""
    try:
        yield
    except GraspError as error:
        raise InvalidInput(str(error)) from error


class RehearsalClassifier:
    """Classify vectors, and keep learning: new samples and new classes do not erase what was learned before.

    It stores what it sees, up to `capacity`. Each call of `partial_fit` learns the new samples and rehearses stored
    ones. Earlier data are never needed again.

    Features are standardised with the mean and the deviation of the first samples.

    Args:
        learner: name of the learner (`graspcl list learners`).
        policy: name of the policy that selects what is rehearsed (`graspcl list policies`).
        width: number of ReLUs beside the vector in the network `wide`.
        capacity: how many samples are stored, or how many bytes, such as "10MB"; None stores all.
        passes: how often each call rehearses the stored samples, on average.
        batch_size: samples per update.
        random_state: seed of everything random; None draws one.

    Attributes:
        classes_: labels of all classes, sorted [k].
        n_features_in_: width of the vectors.
        learner_: the `graspcl.Learner`; its labels number the classes in order of arrival.

    >>> model = RehearsalClassifier(width=50)
    >>> model = model.fit([[0.0, 0.1], [0.1, 0.0], [1.0, 0.9], [0.9, 1.0]], ["a", "a", "b", "b"])
    >>> model = model.partial_fit([[-1.0, 1.0], [-0.9, 0.8]], ["c", "c"])
    >>> model.predict([[0.0, 0.0], [1.0, 1.0], [-1.0, 0.9]]).tolist()
    ['a', 'b', 'c']
    """

    classes_: Array
    n_features_in_: int
    learner_: Learner

    def __init__(
        self, *, learner: str = "aligned", policy: str = "grasp", width: Count = 1000,
        capacity: int | str | None = None, passes: Passes = 1.0, batch_size: Count = 32,
        random_state: Natural | None = 0,
    ) -> None:  # fmt: skip
        self.learner = learner
        self.policy = policy
        self.width = width
        self.capacity = capacity
        self.passes = passes
        self.batch_size = batch_size
        self.random_state = random_state

    # -- learning ------------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any) -> RehearsalClassifier:
        """Learn from vectors X [n, d] and their labels y [n], forgetting everything before; returns the estimator."""
        vectors, labels = self._samples(X, y)
        return self._learn(self._begin(vectors, np.unique(labels)), vectors, labels)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> RehearsalClassifier:
        """Learn more from vectors X [n, d] and their labels y [n]; returns the estimator.

        Args:
            X: the vectors.
            y: their labels, of old or new classes or both.
            classes: labels that will come. They need not be given: classes may arrive at any time. Until a class has a
                sample its probability is 0.
        """
        vectors, labels = self._samples(X, y, first=not self._fitted)
        known = labels if classes is None else _joined(_labels(classes, "classes"), labels)
        if not self._fitted:
            return self._learn(self._begin(vectors, np.unique(known)), vectors, labels)
        self.classes_ = _joined(self.classes_, known)
        return self._learn(self.learner_, vectors, labels)

    def _learn(self, learner: Learner, vectors: Array, labels: Array) -> RehearsalClassifier:
        for label in labels.tolist():
            self._number.setdefault(label, len(self._number))
        with _value_errors():
            learner.observe(self._standardised(vectors), [self._number[label] for label in labels.tolist()])
            updates = max(1, round(self.passes * len(learner.buffer) / self.batch_size)) if self.passes else 0
            learner.rehearse(Budget(updates, self.batch_size))
        self.learner_ = learner
        return self

    def _begin(self, vectors: Array, classes: Array) -> Learner:
        """Set up everything that is learned, for vectors like these; return a learner that has learned nothing."""
        vars(self).pop("learner_", None)  # until the new one has learned, this is not fitted
        self._mean, deviation = vectors.mean(0, dtype=np.float64), vectors.std(0, dtype=np.float64)
        # A constant feature tells nothing. Its deviation is that of rounding, or 0.
        constant = deviation <= 1e-12 * np.maximum(1.0, np.abs(self._mean))
        self._scale = np.where(constant, 1.0, deviation)
        seed = int(np.random.default_rng().integers(2**31)) if self.random_state is None else self.random_state
        self._number: dict[Any, int] = {}  # of each class, in order of arrival
        self._seed, self.n_features_in_, self.classes_ = seed, vectors.shape[1], classes
        with _value_errors():
            return self._make_learner(vectors.shape[1], seed)

    def _make_learner(self, features: int, seed: int) -> Learner:
        from graspcl.buffer import Buffer
        from graspcl.model import make_network

        network = make_network("wide", dim=features + 1, width=self.width, generator=torch_generator(seed, "init"))
        buffer = Buffer(self.capacity, rng=generator(seed, "buffer"))
        return learners.create(self.learner, network, buffer, self.policy, rng=generator(seed, "policy"))

    # -- predicting ----------------------------------------------------------------------------------------------------

    def predict(self, X: Any) -> Array:
        """Return the likeliest classes [n] of vectors X [n, d]."""
        likeliest = self.predict_proba(X).argmax(1)
        return np.asarray(self.classes_[likeliest])

    def predict_proba(self, X: Any) -> Array:
        """Return the probabilities [n, k] of vectors X [n, d], in the order of `classes_`."""
        if not self._fitted:
            known = getattr(sys.modules.get("sklearn.exceptions"), "NotFittedError", _NotFitted)
            raise known("this RehearsalClassifier is not fitted yet; call fit or partial_fit first")
        logits = self.learner_.logits(self._standardised(self._vectors(X)))
        number_of = {label: place for place, label in enumerate(self.classes_.tolist())}
        arrived = [number_of[label] for label in self._number]  # the place of each class that has samples
        found = np.zeros((len(logits), len(self.classes_)))
        found[:, arrived] = logits.double().softmax(1).numpy(force=True)[:, np.argsort(self.learner_.classes)]
        return found

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the share of vectors X [n, d] whose predicted class is y [n], weighted if weights [n] are given."""
        return float(np.average(self.predict(X) == _labels(y), weights=sample_weight))

    # -- what scikit-learn's tools ask for -----------------------------------------------------------------------------

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def set_params(self, **params: Any) -> RehearsalClassifier:
        """Set parameters by name; returns the estimator. They take effect with the next `fit`."""
        for name, value in params.items():
            if name not in self.get_params():
                raise InvalidInput(f"Invalid parameter {name!r} for estimator {self!r}; valid: {[*self.get_params()]}")
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = {name: one.default for name, one in inspect.signature(type(self)).parameters.items()}
        changed = {name: value for name, value in self.get_params().items() if repr(value) != repr(defaults[name])}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in changed.items())})"

    @property
    def _fitted(self) -> bool:
        return "learner_" in vars(self)

    def __sklearn_is_fitted__(self) -> bool:
        return self._fitted

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags  # type: ignore[import-untyped,unused-ignore]

        return Tags(
            estimator_type="classifier", target_tags=TargetTags(required=True), transformer_tags=None,
            regressor_tags=None, classifier_tags=ClassifierTags(), input_tags=InputTags(),
        )  # fmt: skip

    def __getstate__(self) -> dict[str, Any]:
        """Return plain values and arrays, as other programs copy an estimator between processes."""
        state = dict(vars(self))
        return {**state, "learner_": self.learner_.state_dict()} if self._fitted else state

    def __setstate__(self, state: dict[str, Any]) -> None:
        known = dict(state)
        learned = known.pop("learner_", None)
        vars(self).update(known)
        if learned is not None:
            self.learner_ = self._make_learner(self.n_features_in_, self._seed)
            self.learner_.load_state_dict(learned)

    # -- inputs --------------------------------------------------------------------------------------------------------

    def _samples(self, X: Any, y: Any, first: bool = True) -> tuple[Array, Array]:
        """Check the parameters, and return vectors X [n, d] and labels y [n]."""
        with _value_errors():
            check_parameters(type(self), self.get_params())
        if y is None:
            raise InvalidInput(f"{type(self).__name__} requires y to be passed, but the target y is None")
        vectors, labels = self._vectors(X, first), _labels(y)
        if len(vectors) != len(labels):
            raise InvalidInput(f"X has {len(vectors)} samples, but y has {len(labels)} labels: inconsistent numbers")
        return vectors, labels

    def _vectors(self, X: Any, first: bool = False) -> Array:
        """Return X as floats [n, d]; `first` if nothing is known about its width yet."""
        if hasattr(X, "toarray"):
            raise TypeError("X is sparse data, but dense data is required; use X.toarray()")
        found = np.asarray(X)
        if found.dtype.kind == "c":
            raise InvalidInput("Complex data not supported: X must be real numbers")
        try:
            found = np.asarray(found, np.float64)
        except (TypeError, ValueError) as error:
            # A TypeError stays one: so do tools of scikit-learn tell values that are no numbers.
            raise type(error)(f"X must be an array of numbers [n, d]: {error}") from error
        if found.ndim != 2:
            raise InvalidInput(
                f"Expected 2D array [n, d], got shape {found.shape}. Reshape your data with X.reshape(-1, 1)"
            )
        if not found.shape[1]:
            raise InvalidInput(f"Found array with 0 feature(s) (shape={found.shape}) while a minimum of 1 is required.")
        if not len(found):
            raise InvalidInput(f"Found array with 0 sample(s) (shape={found.shape}) while a minimum of 1 is required.")
        if not np.isfinite(found).all():
            raise InvalidInput("Input X contains NaN or infinity; remove or impute such values first")
        if not first and found.shape[1] != self.n_features_in_:
            raise InvalidInput(
                f"X has {found.shape[1]} features, but {type(self).__name__} is expecting {self.n_features_in_} "
                "features as input"
            )
        return found

    def _standardised(self, vectors: Array) -> Array:
        """Return vectors of length 1, about, as the network takes them.

        They end in a constant: without it, the mean of all samples would have no direction.
        """
        scaled = np.pad((vectors - self._mean) / self._scale, ((0, 0), (0, 1)), constant_values=1.0)
        return np.asarray(np.clip(scaled / np.sqrt(scaled.shape[1]), -_LARGEST, _LARGEST), np.float32)


def _labels(y: Any, name: str = "y") -> Array:
    """Return labels [n] exactly as they are; refuse several kinds, missing ones, and numbers that are measurements."""
    found: Array = np.asarray(y) if hasattr(y, "__array__") else np.array(y, object)
    if found.ndim == 2 and found.shape[1] == 1:
        kind = getattr(sys.modules.get("sklearn.exceptions"), "DataConversionWarning", UserWarning)
        warnings.warn("A column-vector y was passed when a 1d array was expected; use y.ravel()", kind, stacklevel=4)
        found = found.ravel()
    if found.ndim != 1:
        raise InvalidInput(f"{name} should be a 1d array, got an array of shape {found.shape} instead.")
    labels = found.tolist()
    if _kind(labels) is float:
        if not np.isfinite(labels).all():
            raise InvalidInput(f"Input {name} contains NaN or infinity.")
        if (labels != np.trunc(labels)).any():
            raise InvalidInput("Unknown label type: continuous. Labels are names or whole numbers, not measurements")
    return found if hasattr(y, "__array__") else _exact(np.asarray(labels), labels)


def _joined(old: Array, new: Array) -> Array:
    """Return all labels of both arrays, sorted."""
    labels = [*old.tolist(), *new.tolist()]
    _kind(labels)
    return np.unique(_exact(np.concatenate([old, new]), labels))


def _kind(labels: Sequence[Any]) -> type | None:
    """Return what labels are, None if there are none; refuse several kinds, and what is no label."""
    kinds = {type(label.item() if isinstance(label, np.generic) else label) for label in labels}
    if len(kinds) > 1 or not kinds <= _KINDS:
        found = " and ".join(sorted(kind.__name__ for kind in kinds))
        raise InvalidInput(f"labels must be of one kind, all names or all whole numbers, and none missing; got {found}")
    return kinds.pop() if kinds else None


def _exact(found: Array, labels: list[Any]) -> Array:
    """Return labels as the array `found`, unless numpy made floats of integers, some of which are above 2^63."""
    return np.array(labels, object) if found.dtype.kind == "f" and _kind(labels) is int else found
