"""The results of each part, in a file of its own: a part stands by itself, as its ratios are taken inside it."""

import json
from collections.abc import Iterable
from pathlib import Path

from benchmarks.measurements import Part

__all__ = ["RESULTS", "load_parts", "save_part"]

RESULTS = Path(__file__).parent / "results"


def save_part(part: Part, directory: Path = RESULTS) -> None:
    """Keeps what a part measured, in place of what it had measured before."""
    directory.mkdir(exist_ok=True)
    text = json.dumps(part.dump(), indent=1, ensure_ascii=False) + "\n"
    (directory / f"{part.name}.json").write_text(text, "utf-8")


def load_parts(names: Iterable[str], directory: Path = RESULTS) -> list[Part]:
    """What is known of these parts, in this order."""
    files = [directory / f"{name}.json" for name in names]
    return [Part.load(json.loads(file.read_text("utf-8"))) for file in files if file.exists()]
