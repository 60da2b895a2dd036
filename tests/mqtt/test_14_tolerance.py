"""`mqtt.strict` off: breaches that the broker can bear are counted and logged once, and the client stays."""

from tbmq.packets import Connack, Connect, Puback, Publish
from tests.helpers import Client, run_broker


def test_a_client_over_receive_maximum_stays_and_is_logged_once_when_strict_is_off(tmp_path):
    settings = {"mqtt.strict": "false", "mqtt.receive_maximum": 2}
    with run_broker(tmp_path, settings=settings) as broker:
        client = Client(broker.address, "greedy").open()
        client.send(Connect("greedy"))
        assert client.expect(Connack).properties["receive_maximum"] == 2
        start = broker.log_bytes()
        burst = [Publish("t", b"", 1, packet_id=n) for n in range(1, 11)]
        for _ in range(2):
            client.send(*burst)
            for n in range(1, 11):
                client.expect(Puback, packet_id=n)
        assert broker.log(start).count("greedy: tolerated") == 1
        client.close()
