"""Makes the links of the README absolute where it leaves the repository, in wheel and sdist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_CODE = re.compile(r"(^```.*?^```|`[^`\n]*`)", re.MULTILINE | re.DOTALL)
_RELATIVE = r"(?![a-z][a-z0-9+.-]*:|#)([^)\s]+)"
_IMAGE = re.compile(rf"(!\[[^]]*\]\(){_RELATIVE}")
_LINK = re.compile(rf"(\]\(){_RELATIVE}")


class AbsoluteReadme(MetadataHookInterface):
    """An index shows the README away from its files: ``project.urls.Source`` says where these are.

    That is the address of the repository at a forge with ``/blob/HEAD/`` and ``/raw/HEAD/``. As
    long as ``pyproject.toml`` has none, links stay as they are.
    """

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the readme of the project's metadata."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        if source := metadata.get("urls", {}).get("Source"):
            text = absolute(text, source.rstrip("/"))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def absolute(text: str, source: str) -> str:
    """Lead relative links of a Markdown text to a repository, and images to their bytes."""
    parts = _CODE.split(text)
    for place in range(0, len(parts), 2):  # between them is code
        with_images = _IMAGE.sub(rf"\1{source}/raw/HEAD/\2", parts[place])
        parts[place] = _LINK.sub(rf"\1{source}/blob/HEAD/\2", with_images)
    return "".join(parts)
