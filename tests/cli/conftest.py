"""Files of two sites."""

from __future__ import annotations

import pandas as pd
import pytest

from command_line import NAMES, ROWS


@pytest.fixture
def sites(tmp_path):
    frame = pd.DataFrame(ROWS, columns=NAMES)
    frame[:30].to_parquet(tmp_path / "north.parquet")
    frame[30:][NAMES[::-1]].to_csv(tmp_path / "south.csv", index=False, float_format="%.17g")
    return [str(tmp_path / "north.parquet"), str(tmp_path / "south.csv")]
