"""Networks of the proofs as data for the page."""


def theory_data() -> str:
    return ""
