"""What `tbmq serve` refuses before it starts anything."""

import socket

from tbmq.config import Config
from tbmq.supervisor import serve


def test_serve_refuses_the_cluster_profile_when_this_version_has_none(caplog):
    assert serve(Config(profile="cluster")) == 1
    assert "profile=embedded" in caplog.text


def test_serve_names_the_key_to_change_when_an_address_is_taken(caplog):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        listeners = {"tcp": {"bind": f"127.0.0.1:{port}"}, "ws": {"bind": ""}}
        assert serve(Config.model_validate({"listeners": listeners, "admin": {"bind": ""}})) == 1
    assert f"127.0.0.1:{port}" in caplog.text
    assert "listeners.tcp.bind" in caplog.text
