"""Names of other clients are answered with Milena's."""

import re

import pytest

import milena
from milena import sync
from milena.consuming.options import ConsumerOptions
from milena.hints import ARGUMENTS, ATTRIBUTES
from milena.producing.options import ProducerOptions

URL = "http://127.0.0.1:1"

CLASSES = {
    "Client": (milena.Client, sync.Client),
    "Admin": (milena.AdminClient, sync.Admin),
    "Producer": (milena.Producer, sync.Producer),
    "Consumer": (milena.Consumer, sync.Consumer),
}
ROWS = [(owner, name) for owner, names in ATTRIBUTES.items() for name in names]


async def made(owner):
    async with milena.Client(URL) as client:
        match owner:
            case "Client":
                return client
            case "Admin":
                return client.admin
            case "Producer":
                return client.producer()
    return client.consumer("t")


@pytest.mark.parametrize(("owner", "name"), ROWS)
async def test_an_attribute_of_another_client_is_answered_with_the_own_one(owner, name):
    target = milena if owner == "milena" else await made(owner)
    hint = re.escape(ATTRIBUTES[owner][name])
    with pytest.raises(AttributeError, match=rf"'{name}'; did you mean {hint}\?"):
        getattr(target, name)


@pytest.mark.parametrize(("owner", "name"), ROWS)
def test_a_hint_names_what_is_there_for_what_is_not(owner, name):
    told = re.match(r"[\w.]+", ATTRIBUTES[owner][name])[0]
    if owner == "milena":
        assert not hasattr(milena, name)
        assert hasattr(milena, told)
        return
    for kind in CLASSES[owner]:
        if name == "close" and hasattr(kind, name):
            continue
        assert not hasattr(kind, name), kind
        if told.startswith("client."):
            place = milena.AdminClient if told.startswith("client.admin.") else milena.Client
            assert hasattr(place, told.split(".")[-1])
        elif told not in ("nothing", "async"):
            assert hasattr(kind, told), kind


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_keyword_of_another_client_is_answered_with_the_own_one(name):
    assert name not in ConsumerOptions.__dataclass_fields__
    assert name not in ProducerOptions.__dataclass_fields__
    hint = re.escape(ARGUMENTS[name])
    for make in (milena.Client, sync.Client):
        with pytest.raises(TypeError, match=rf"'{name}'; did you mean {hint}"):
            make(**{"url": URL, name: 1})


@pytest.mark.parametrize("name", ["group_id", "auto_offset_reset", "bootstrap_servers"])
async def test_the_makers_of_producers_readers_and_consumers_answer_too(name):
    async with milena.Client(URL) as client:
        for make in (
            client.consumer,
            client.producer,
            lambda **given: client.reader("t", 0, **given),
            lambda **given: client.transactional_producer("id", **given),
        ):
            with pytest.raises(TypeError, match=rf"'{name}'; did you mean {ARGUMENTS[name]}"):
                make(**{name: 1})


async def test_what_nobody_knows_has_no_hint():
    with pytest.raises(AttributeError, match=r"'frobnicate'$"):
        milena.frobnicate  # noqa: B018
    client = await made("Client")
    with pytest.raises(AttributeError, match=r"'frobnicate'$"):
        client.frobnicate  # noqa: B018
    with pytest.raises(TypeError, match=r"'frobnicate'$"):
        client.producer(frobnicate=1)


async def test_a_type_error_of_the_programs_own_is_left_alone():
    with pytest.raises(TypeError, match=r"credentials are milena.Credentials, not int$"):
        milena.Client(URL, credentials=1)


@pytest.mark.parametrize("owner", CLASSES)
async def test_names_of_other_clients_are_not_offered(owner):
    offered = dir(await made(owner))
    assert not ATTRIBUTES[owner].keys() & set(offered)
    assert {"__class__", "admin", "send", "poll", "cluster"} & set(offered) > {"__class__"}
