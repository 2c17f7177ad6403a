"""Our keys under `filter_metadata.smetric`."""

from __future__ import annotations

from pathlib import Path

from tests.support.envoy_yaml import change, clean, cluster, inspect


def test_known_keys_and_words_are_listed_once(tmp_path: Path) -> None:
    """Where nothing known resembles what is written, the message does not repeat what the advice lists."""
    for key, value in (("zzz", 1), ("source", "zzz")):
        yaml = clean()
        change(cluster(yaml, "engines"), f"metadata.filter_metadata.smetric.{key}", value)
        text = inspect(yaml, tmp_path).render()
        assert text.count("model_dir, models" if key == "zzz" else "events, routed") == 1, text
        assert "known are" not in text
