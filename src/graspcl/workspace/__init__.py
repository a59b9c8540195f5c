"""A classifier that stays current: one folder that holds everything it knows, and verbs that change it."""
