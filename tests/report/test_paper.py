"""The paper's tables next to our runs: only runs with the paper's settings are placed in them."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from making import make_run, write_json

from graspcl.errors import GraspError
from graspcl.report import gather
from graspcl.report.paper import paper_settings, paper_table, published
from graspcl.settings import change, preset
from graspcl.settings.config import as_plain

ROWS = Path(__file__).with_name("paper_rows.tex")
PAPER = Path(__file__).parents[2].parent / "shared" / "paper" / "grasp.tex"
PRINTED = {name: table for name, table in published().items() if "rows" in table}


def placed(folder, which, name, options=None, *, rehearsal=None, memory="bounded", seeds=1, summary=None, **made):
    """The rows of a table after runs of both policies of a preset, changed by options."""
    for policy in ("grasp", "uniform_balanced"):
        for seed in range(seeds):
            config = change(preset(name, rehearsal=rehearsal, memory=memory), {"policy": policy, **(options or {})})
            plain = {**as_plain(config), "seed": seed}
            place = folder / f"{len([*folder.glob('*')])}"
            right = 7 if policy == "grasp" else 6
            make_run(place, policy, seed, **{"right": right, "config": plain, **made})
            (place / "predictions.npz").unlink()  # the number of test samples is another test's
            if summary is not None:
                write_json(place / "summary.json", {**json.loads((place / "summary.json").read_text()), **summary})
    return paper_table(gather([folder]).experiments, which)


def ours(table, method="GRASP"):
    """Our texts of a row."""
    return next([cell.text for cell in row[2::2]] for row in table.rows if row[0].text == method)


# -- what is published -------------------------------------------------------------------------------------------------


def test_published_numbers_are_whole_and_of_known_policies():
    from graspcl.policy import policies

    assert list(published()) == [
        *(f"table-{number}" for number in range(2, 12)), "iid", *(f"figure-{number}" for number in range(1, 11))
    ]  # fmt: skip
    for table in PRINTED.values():
        for row in table["rows"]:
            assert len(row["values"]) == len(table["columns"]) == len(row.get("std", table["columns"]))
            made = policies.create(row["policy"], **row.get("parameters", {}))
            assert made != policies.create(row["policy"]) or "parameters" not in row
            for column in table["columns"]:
                about = {**table, **column, **row}
                assert "average" in column or paper_settings(about["preset"], about["rehearsal"], "bounded")


def numbers_of(row):
    """The published numbers of a row, each with its deviation if it has one."""
    spread = [() if math.isnan(s) else (s,) for s in row["std"]] if "std" in row else [()] * len(row["values"])
    return [(value, *std) for value, std in zip(row["values"], spread, strict=True)]


def test_tables_have_all_numbers_of_the_paper_and_no_others():
    printed = []
    for line in ROWS.read_text(encoding="utf-8").splitlines()[1:]:
        numbers = [re.findall(r"(?<![\d.])\d+\.\d+", cell) for cell in line.split("&")[1:]]
        printed.append([tuple(map(float, found)) for found in numbers])
    known = [numbers_of(row) for name, table in PRINTED.items() if name.startswith("table") for row in table["rows"]]
    assert sorted(known) == sorted(printed)


@pytest.mark.skipif(not PAPER.exists(), reason="needs ../shared/paper/grasp.tex")
def test_published_numbers_are_those_of_the_paper():
    text = "\n".join(
        line for line in PAPER.read_text(encoding="utf-8").splitlines() if not line.strip().startswith("%")
    )
    rows = []
    for line in re.findall(r"^.*\$.*\\\\", text, flags=re.MULTILINE):
        cells = line.split("%")[0].split("&")[1:]
        numbers = [re.findall(r"(?<![\d.])\d+\.\d+", cell) for cell in cells]
        rows.append([tuple(map(float, found)) for found in numbers])
    for name, table in PRINTED.items():
        for row in table["rows"]:
            wanted = numbers_of(row)
            if name.startswith("table"):
                assert wanted in rows, f"{name}: {row['method']}"
            elif name in ("iid", "figure-9"):  # in a sentence
                for value, std in wanted:
                    assert rf"{value:.2f} \pm{std:.2f}$" in text
            elif name == "figure-1":
                assert r"$40\%$ fewer" in text and r"$36\%$ less" in text and wanted == [(40,), (36,)]
            else:  # bars, whose numbers are in tables
                assert {*wanted} <= {cell for printed in rows for cell in printed}


def test_contradictions_of_the_paper_are_named():
    tail = published()["table-9"]
    for row in tail["rows"]:
        for start in (0, 6):
            head, few, final = row["values"][start + 3 : start + 6]
            assert final > max(head, few)
    assert "contradict themselves" in paper_table([], "table-9").caption
    wrong = {
        (row["method"], task)
        for row in published()["table-8"]["rows"]
        for task in (1, 2)
        if row["values"][2 * task - 1] + 5e-5 < row["values"][2 * task - 2] / 100
    }
    assert wrong == {("Rainbow Memory", 1), ("MIR", 2), ("ASER", 2)}
    assert "φ of Rainbow Memory in task 1, of MIR and ASER in task 2" in paper_table([], "table-8").caption


def test_what_is_not_there_is_refused_with_a_hint():
    with pytest.raises(GraspError, match="did you mean 'table-11'"):
        paper_table([], "table-l1")
    with pytest.raises(GraspError, match="prints no numbers in this figure; table-8 has the area"):
        paper_table([], "figure-4")
    assert paper_table([], "4").name == "table-4"
    assert paper_table([], "iid").title == "Section 5.3 of the paper and our runs"


# -- which runs are placed ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("which", "name", "rehearsal", "memory", "filled"),
    [
        ("table-2", "imagenet-300", "latent", "bounded", [False, False, True, True, True]),
        ("table-2", "imagenet-300", "latent", "unbounded", [True, True, False, False, True]),
        ("table-2", "imagenet-300", "veridical", "bounded", 5 * [False]),
        ("table-2", "imagenet-150", "latent", "bounded", 5 * [False]),
        ("table-3", "imagenet-150", "latent", "bounded", [False, False, True, True, True]),
        ("table-4", "imagenet-1k", "latent", "bounded", 4 * [False] + 4 * [True]),
        ("table-4", "imagenet-1k-iid", "latent", "bounded", 8 * [False]),
        ("table-4", "gdumb-imagenet-1k", "latent", "bounded", 8 * [False]),
        ("table-5", "imagenet-1k", "veridical", "unbounded", 4 * [True] + 4 * [False]),
        ("table-5", "imagenet-1k", "veridical", "bounded", 4 * [False] + 4 * [True]),
        ("iid", "imagenet-1k-iid", "latent", "bounded", [True, True]),
        ("iid", "imagenet-1k-iid", "latent", "unbounded", [False, False]),
        ("figure-7", "imagenet-1k", "veridical", "bounded", [False, False, False, True]),
        ("figure-8", "derpp-imagenet-1k", "veridical", "bounded", [False, False, False, True]),
        ("figure-9", "imagenet-1k-iid", "latent", "bounded", [True]),
    ],
)
def test_presets_fill_their_own_columns(tmp_path, which, name, rehearsal, memory, filled):
    table = placed(tmp_path, which, name, rehearsal=rehearsal, memory=memory)
    assert [text != "–" for text in ours(table)] == filled


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, ""), ({"data": "elsewhere", "measure.distances": 0, "checkpoint.seconds": 5}, ""),
        ({"rehearsal": "veridical"}, "rehearsal (veridical, not latent)"),
        ({"network.scale": 16.0}, "network.scale (16.0, not given)"),
        ({"network.split": 6}, "network.split (6, not 7)"),
        ({"network": "efficientnet_lite0"}, "network.name (efficientnet_lite0, not mobilenet_v3_large)"),
        ({"codec": "half"}, "codec.name (half, not opq)"), ({"buffer": "0.1GB"}, "buffer.capacity (0.1GB, not 0.2GB)"),
        ({"buffer.maintenance": "fifo"}, "buffer.maintenance.name (fifo, not largest_class)"),
        ({"buffer.new_samples": "extra"}, "buffer.new_samples (extra, not none)"),
        ({"data.pixels": 64}, "data.pixels (64, not 224)"), ({"data.per_class": 100}, "data.per_class (100, not none)"),
        ({"stream.sessions": 5}, "stream.sessions (5, not 4)"), ({"budget.updates": 5}, "budget.updates (5, not 1251)"),
        ({"budget.times": 0.5}, "budget.times (0.5, not 1.0)"), ({"stop": 3}, "stop.patience (3, not none)"),
        ({"optimiser.lr": 0.1}, "optimiser.lr (0.1, not 1.6)"),
        ({"learner": "gdumb"}, "learner.name (gdumb, not siesta)"),
    ],
)  # fmt: skip
def test_a_run_with_another_setting_is_left_out_and_the_setting_named(tmp_path, options, said):
    table = placed(tmp_path, "table-2", "imagenet-300", options)
    assert [text != "–" for text in ours(table)][2:] == 3 * [not said]
    assert (f"differs in {said}" in table.caption) if said else "Our runs: imagenet-300 (" in table.caption


def test_parameters_of_the_policy_count(tmp_path):
    table = placed(tmp_path, "table-2", "imagenet-300", {"policy": "grasp(eps=0.5)"})
    assert ours(table) == 5 * ["–"] and "differs in policy.eps (0.5, not given)." in table.caption


@pytest.mark.parametrize(
    ("which", "method", "policy", "said"),
    [
        ("table-2", "Min Margin", "min_margin(of=logits,weighting=published)", ""),
        ("table-2", "Min Margin", "min_margin(weighting=published,of=logits)", ""),
        ("table-2", "Min Margin", "min_margin(weighting=published)", "policy.of (none, not logits)"),
        ("table-2", "Max Loss", "max_loss(weighting=published)", ""),
        ("table-2", "Max Loss", "max_loss", "policy.weighting (none, not published)"),
        ("table-3", "Grad Matching", "grad_matching(balanced=no)", ""),
        ("table-3", "Grad Matching", "grad_matching", "policy.balanced (none, not false)"),
        ("table-3", "GSS", "gss", ""),
        ("table-3", "GSS", "gss(mode=top)", "policy.mode (top, not given)"),
    ],
)
def test_rows_take_the_parameters_behind_the_published_numbers(tmp_path, which, method, policy, said):
    name = {"table-2": "imagenet-300", "table-3": "imagenet-150"}[which]
    table = placed(tmp_path, which, name, {"policy": policy})
    assert [text != "–" for text in ours(table, method)][2:] == 3 * [not said]
    assert (f"differs in {said}." in table.caption) if said else f"Our runs: {name} (" in table.caption
    needed = {"table-2": "min_margin(of=logits, weighting=published)", "table-3": "grad_matching(balanced=false)"}
    assert f"parameters of the published numbers: {needed[which]}" in table.caption.replace(
        "min_confidence(weighting=published), ", ""
    )


@pytest.mark.parametrize(
    ("options", "memory", "fits"),
    [({}, "bounded", True), ({}, "unbounded", False), ({"learner.teacher": False}, "bounded", False),
     ({"buffer.maintenance": "largest_class"}, "bounded", False)],
)  # fmt: skip
def test_derpp_is_the_papers_or_left_out(tmp_path, options, memory, fits):
    table = placed(tmp_path, "table-6", "derpp-imagenet-1k", options, memory=memory)
    assert [text != "–" for text in ours(table, "DERpp, GRASP")] == 4 * [fits] + 4 * [False]
    assert ours(table, "GDumb, GRASP") == 8 * ["–"]


def test_the_data_are_known_by_their_test_samples(tmp_path):
    for number, size in ((1, 15_000), (2, 14_999)):
        folder = tmp_path / str(number)
        made = make_run(folder / "run", right=7, config=as_plain(preset("imagenet-300")))
        labels = np.arange(size) % 300
        arrays = {"labels": labels, "arrived": np.zeros(size, int), "predictions": np.tile(labels, (4, 1))}
        np.savez(made / "predictions.npz", **arrays)
        table = paper_table(gather([folder]).experiments, "table-2")
        assert (ours(table)[3] == "70.00") == (size == 15_000)
    assert "differs in test.samples (14999, not 15000)" in table.caption


def test_base_initialisation_is_named_but_decides_nothing(tmp_path):
    config = as_plain(preset("imagenet-300"))
    stages = [{"name": "supervised", "epochs": 3, "step": 15, "gamma": 0.1, "batch_size": 256, "lr": 0.2}]
    config["base"] = {"stages": stages, "passes": 0.0}
    table = placed(tmp_path, "table-2", "imagenet-300", config={**config, "policy": {"name": "grasp"}})
    assert ours(table)[3] == "70.00"
    said = "differ in base.stages.swav.name (none, not swav), base.stages.supervised.epochs (3, not 50)"
    assert said in table.caption and "swav.epochs" not in table.caption


def test_budgets_and_sizes_have_columns_of_their_own(tmp_path):
    placed(tmp_path, "table-7", "imagenet-1k", {"budget.times": 0.6})
    table = placed(tmp_path, "table-7", "imagenet-1k", {"buffer": "0.75GB"}, summary={"buffer_bytes": 750_000_000})
    assert [text != "–" for text in ours(table)] == [True, False, False, True, False, False]


def test_more_runs_with_another_budget_do_not_count(tmp_path):
    placed(tmp_path, "table-4", "imagenet-1k", {"budget.times": 2.0}, memory="unbounded", seeds=3, right=2)
    table = placed(tmp_path, "table-4", "imagenet-1k", memory="unbounded")
    assert ours(table) == [*ours(table)[:3], "70.00", "–", "–", "–", "–"]
    assert [cell.text for cell in table.rows[1]][7] == "62.05 ± 0.09"


def test_orders_of_texts_have_columns_of_their_own_and_a_mean(tmp_path):
    for order, alpha in (("1", 50.0), ("2", 60.0), ("3", 70.0), ("4", 80.0)):
        table = placed(tmp_path, "table-11", f"text-order-{order}", summary={"alpha_tasks": alpha})
    assert ours(table) == ["50.00", "60.00", "70.00", "60.00", "80.00", "–", "–", "–"]  # no mean of what is not there
    assert [cell.text for cell in table.rows[1]][1:8:2] == ["73.59 ± 0.12", "72.96 ± 0.07", "73.26 ± 0.36", "73.27"]


def test_small_hours_keep_their_digits(tmp_path):
    spent = {"training_seconds": 0.0042, "selection_seconds": 0.0}
    assert ours(placed(tmp_path, "table-2", "imagenet-300", summary=spent))[-1] == "0.0000012"


def test_drift_is_compared_by_session_as_a_mean_square(tmp_path):
    for folder in [make_run(tmp_path / "run", config={**as_plain(preset("drift")), "policy": {"name": "grasp"}})]:
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        lines = [{**line, "drift_mse_auc": 0.01 * t, "drift_mse_mean": 0.001 * t} for t, line in enumerate(lines, 1)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (folder / "predictions.npz").unlink()
    table = paper_table(gather([tmp_path]).experiments, "table-8")
    assert ours(table) == ["0.0100", "0.0010", "0.0200", "0.0020"]


def test_what_is_saved_stands_beside_figure_1(tmp_path):
    # α of GRASP rises from 5 to 7 of 10, that of the other from 4 to 6: GRASP is there halfway between.
    for times, less in ((0.5, 2), (1.0, 0)):
        for policy, right in (("grasp", 7), ("uniform_balanced", 6)):
            config = change(preset("imagenet-1k"), {"policy": policy, "budget.times": times})
            folder = tmp_path / f"{policy}{times}"
            make_run(folder, policy, right=right - less, updates=int(10 * times), config=as_plain(config))
            (folder / "predictions.npz").unlink()
    table = paper_table(gather([tmp_path]).experiments, "figure-1")
    assert [cell.text for cell in table.rows[0]] == ["GRASP", "40", "25", "36", "25"]


def test_hours_of_the_paper_count_training_and_selection(tmp_path):
    seconds = {"training_seconds": 3600.0, "selection_seconds": 1800.0}
    assert ours(placed(tmp_path, "table-2", "imagenet-300", summary=seconds))[-1] == "1.50"


def test_runs_stand_below_their_memory_and_form_of_rehearsal(tmp_path):
    places = [(form, memory) for form in ("latent", "veridical") for memory in ("unbounded", "bounded")]
    for right, (form, memory) in enumerate(places, start=5):
        placed(tmp_path, "table-4", "imagenet-1k", rehearsal=form, memory=memory, right=right)
    experiments = gather([tmp_path]).experiments
    assert [ours(paper_table(experiments, "table-4"))[place] for place in (3, 7)] == ["50.00", "60.00"]
    assert [ours(paper_table(experiments, "table-5"))[place] for place in (3, 7)] == ["70.00", "80.00"]
