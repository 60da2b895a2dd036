"""Client certificates: names of real chains, against a real store."""

from __future__ import annotations

import contextlib
import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tbmq.auth.model import SKIPPED, Answer, Denied, Granted, Login
from tbmq.auth.settings import SettingsError
from tbmq.auth.x509 import MAX_CHAIN, X509Provider, read_common_names
from tbmq.protocol import ReasonCode
from tbmq.storage.entities import X509Proof
from tests.auth.support import LostStore, entity_store, on_loop

DAY = datetime.timedelta(days=1)


def make_chain(*names: list[str]) -> list[bytes]:
    """DER of certificates, each signed by the next; each with any number of common names."""
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in names]
    subjects = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in some]) for some in names]
    chain = []
    for place in range(len(names)):
        issuer = min(place + 1, len(names) - 1)
        now = datetime.datetime.now(datetime.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subjects[place])
            .issuer_name(subjects[issuer])
            .public_key(keys[place].public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + DAY)
            .sign(keys[issuer], hashes.SHA256())
        )
        chain.append(certificate.public_bytes(serialization.Encoding.DER))
    return chain


@contextlib.asynccontextmanager
async def provider_of(folder, *proofs, **settings):
    async with entity_store(folder, *proofs) as (store, credentials):
        provider = X509Provider.from_settings(settings, store.lookup)
        yield provider, [entry.id for entry in credentials]
        await provider.close()


def who(answer: Answer) -> str | None:
    return answer.principal.credentials_id if isinstance(answer, Granted) else None


def login(*names: str) -> Login:
    return Login("c", common_names=names)


def test_names_are_read_in_order_when_the_chain_is_whole():
    chain = make_chain(["device-1"], ["Plant CA"], ["Root"])
    assert read_common_names(chain) == ("device-1", "Plant CA", "Root")


def test_place_is_kept_when_a_certificate_has_no_single_name():
    assert read_common_names(make_chain([], ["admin"])) == ("", "admin")
    assert read_common_names(make_chain(["device", "admin"], ["Root"])) == ("", "Root")


def test_chain_is_cut_when_it_is_very_long():
    assert len(read_common_names(make_chain(["device"]) * (MAX_CHAIN + 5))) == MAX_CHAIN


def test_names_are_refused_when_a_certificate_cannot_be_read():
    with pytest.raises(ValueError):
        read_common_names([b"no certificate"])


@on_loop
async def test_nothing_is_said_when_there_is_no_certificate(tmp_path):
    async with provider_of(tmp_path, X509Proof(".*", is_regex=True, is_whole_chain=True)) as (provider, _):
        assert await provider.authenticate(Login("c", "u", b"p")) is SKIPPED


@on_loop
async def test_client_is_let_in_when_its_own_name_fits(tmp_path):
    names = read_common_names(make_chain(["device-1"], ["Plant CA"], ["Root"]))
    async with provider_of(tmp_path, X509Proof("device-1")) as (provider, [credentials_id]):
        answer = await provider.authenticate(login(*names))
        assert who(answer) == credentials_id
        assert answer.principal.name == "x509:device-1"


@on_loop
async def test_client_is_refused_when_no_name_fits(tmp_path):
    proofs = X509Proof("device-1"), X509Proof(r"sensor-\d+", is_regex=True), X509Proof("Plant CA")
    async with provider_of(tmp_path, *proofs) as (provider, _):
        for names in (
            ("device-2",),
            ("device-10",),
            ("DEVICE-1",),
            ("device",),
            ("sensor-1x",),  # a pattern must match all of the name
            ("xsensor-1",),
            ("device-2", "Plant CA"),  # for the client's own certificate only
            ("device-2", "device-1"),
            ("device-1\n",),
        ):
            answer = await provider.authenticate(login(*names))
            assert isinstance(answer, Denied) and answer.reason_code is ReasonCode.NOT_AUTHORIZED, names
            assert not answer.is_fault


@on_loop
async def test_any_name_of_the_chain_is_enough_when_the_credentials_say_so(tmp_path):
    proofs = X509Proof("Plant CA", is_whole_chain=True), X509Proof("Site .*", is_regex=True, is_whole_chain=True)
    async with provider_of(tmp_path, *proofs) as (provider, [exact, pattern]):
        assert who(await provider.authenticate(login("device", "Plant CA", "Root"))) == exact
        assert who(await provider.authenticate(login("device", "Mid", "Site 7"))) == pattern
        assert who(await provider.authenticate(login("device", "", "Site 7"))) == pattern
        assert who(await provider.authenticate(login("Plant CA"))) == exact


@on_loop
async def test_exact_name_comes_first_when_a_pattern_fits_too(tmp_path):
    proofs = X509Proof("dev.*", is_regex=True), X509Proof("device")
    async with provider_of(tmp_path, *proofs) as (provider, [pattern, exact]):
        assert who(await provider.authenticate(login("device"))) == exact
        assert who(await provider.authenticate(login("devices"))) == pattern


@on_loop
async def test_client_is_refused_when_its_certificate_has_no_name(tmp_path):
    async with provider_of(tmp_path, X509Proof(".*", is_regex=True), X509Proof("admin")) as (provider, _):
        for chain in (make_chain([], ["admin"]), make_chain(["device", "admin"])):
            answer = await provider.authenticate(login(*read_common_names(chain)))
            assert isinstance(answer, Denied)


@on_loop
async def test_next_provider_is_asked_when_unknown_certificates_are_skipped(tmp_path):
    async with provider_of(tmp_path, X509Proof("device"), unknown_certificate="skip") as (provider, [credentials_id]):
        assert await provider.authenticate(login("other")) is SKIPPED
        assert who(await provider.authenticate(login("device"))) == credentials_id


@on_loop
async def test_client_is_refused_as_a_fault_when_the_database_is_gone():
    answer = await X509Provider(LostStore()).authenticate(login("device"))
    assert isinstance(answer, Denied) and answer.is_fault
    assert answer.reason_code is ReasonCode.SERVER_UNAVAILABLE


def test_settings_are_refused_by_name_when_they_are_wrong():
    with pytest.raises(SettingsError, match=r"^x509\.unknown_certificate: must be 'deny' or 'skip'"):
        X509Provider.from_settings({"unknown_certificate": "maybe"}, store=None)
