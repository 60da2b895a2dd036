"""The soak in half a minute: the same clients, the same verdict. A slow leak is seen only by `./dev soak`."""

import json

import pytest

from tests.helpers import is_mosquitto
from tests.soak.__main__ import main

MINUTES = 0.15


@pytest.mark.skipif(is_mosquitto(), reason="the soak has settings and listeners of ours")
def test_memory_comes_back_and_nothing_is_lost_under_mixed_load(tmp_path, capsys):
    code = main(["--minutes", str(MINUTES), "--seed", "4", "--folder", str(tmp_path / "soak")])
    assert code == 0, capsys.readouterr().out
    result = json.loads((tmp_path / "soak/soak.json").read_text())
    assert all(actor["turns"] > 0 for actor in result["actors"].values())
    received = {flow["name"]: flow["result"]["received"] for flow in result["flows"] if flow["name"] != "connects"}
    assert all(received.values()), received
    assert len(result["during"]) > 10
    assert (tmp_path / "soak/soak.svg").read_text().count("<polyline") == 2 * len(result["names"])
