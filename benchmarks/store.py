"""The results of each part in its own file: the ratios of a part compare numbers of that part only."""

import json
from collections.abc import Iterable
from pathlib import Path

from benchmarks.measurements import Part

__all__ = ["RESULTS", "load_parts", "save_part"]

RESULTS = Path(__file__).parent / "results"


def save_part(part: Part, directory: Path = RESULTS) -> None:
    """Stores the results of a part, in place of its former results."""
    directory.mkdir(exist_ok=True)
    text = json.dumps(part.dump(), indent=1, ensure_ascii=False) + "\n"
    (directory / f"{part.name}.json").write_text(text, "utf-8")


def load_parts(names: Iterable[str], directory: Path = RESULTS) -> list[Part]:
    """The stored results of these parts, in this order."""
    files = [directory / f"{name}.json" for name in names]
    return [Part.load(json.loads(file.read_text("utf-8"))) for file in files if file.exists()]
