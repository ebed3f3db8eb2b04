"""The batch says what the packages say: evaluated as it stands, it gives the reference's answer."""

import gc
import hashlib
import json
import re
import subprocess
import sys

import pytest

from debian_demo.graph import UnknownPackage, load_packages
from tests.helpers import demo_reference as reference

pytestmark = pytest.mark.xdist_group("debian")  # the fixtures take seconds, in each process anew


@pytest.fixture(scope="module", autouse=True)
def _no_garbage_collection():
    """Half the time would go into looking for garbage among a million objects that live on."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(scope="module")
def packages():
    return load_packages()


@pytest.fixture(scope="module")
def updates(packages):
    return packages.updates()


@pytest.fixture(scope="module")
def puts(updates):
    return [update["putValue"] for update in updates if "putValue" in update]


def hops(own, dependencies):
    if own:
        return 0
    return min((1 + distance for distance in dependencies if distance is not None), default=None)


def any_of(values):
    return any(values)


CODE = {"any": any_of, "identity": lambda value: value, "hops": hops}


def test_the_table_says_the_same(packages, updates):
    """With functions before it; a value that is computed has no value of its own."""
    batch = packages.batch()

    assert batch.to_wire() == updates


def evaluate(updates, fixed_id=None):
    """Value id → value, in one pass: an input that comes later than its dependent is a KeyError."""
    codes, values = {}, {}
    for update in updates:
        if func := update.get("putFunc"):
            codes[func["funcId"]] = CODE[func["code"]]
            continue
        put = update["putValue"]
        if "funcId" not in put:
            values[put["valueId"]] = put["value"] and put["valueId"] != fixed_id
            continue
        arguments = {
            argument: [values[i] for i in target] if isinstance(target, list) else values[target]
            for argument, target in put["inputs"].items()
        }
        values[put["valueId"]] = codes[put["funcId"]](**arguments)
    return values


@pytest.mark.parametrize(
    "fixed",
    [
        pytest.param(None, id="at first"),
        pytest.param("libc6", id="libc6, which nearly all depend on"),
        pytest.param("python3.11", id="python3.11, which moves thousands"),
        pytest.param("tzdata", id="tzdata, which frees a few"),
        pytest.param("linux-libc-dev", id="linux-libc-dev, which does both"),
        pytest.param("ruby3.1", id="ruby3.1, in a cycle of which more is pending"),
        pytest.param("libgcc-s1", id="libgcc-s1, for which nothing is pending"),
    ],
)
def test_every_package_has_the_reference_exposure_and_distance(packages, updates, fixed):
    """Not the counts alone: each of the 63,436, before and after each fix."""
    expected = reference.distances(fixed)

    values = evaluate(updates, fixed and packages.own_id(fixed))

    exposed = [values[value_id] for value_id in packages.exposed_ids]
    distances = [values[value_id] for value_id in packages.distance_ids]
    assert distances == [expected[name] for name in packages.names]
    assert exposed == [distance is not None for distance in distances]


@pytest.mark.parametrize(
    ("package", "counts"),
    [
        ("libc6", (49_089, 38_744, 18_808)),
        ("tzdata", (49_089, 49_079, 16)),
        ("libgcc-s1", (49_089, 49_089, 0)),
    ],
)
def test_the_reference_itself_has_not_moved(package, counts):
    """Fixed numbers, lest data and both computations go astray together."""
    assert reference.counts(package) == counts


def test_ids_are_ulids_and_none_comes_twice(updates, puts):
    funcs = [update["putFunc"] for update in updates if "putFunc" in update]
    ids = [func["funcId"] for func in funcs] + [put["valueId"] for put in puts]

    assert len(ids) == len(set(ids)) == len(updates)
    assert all(re.fullmatch("[0-7][0-9A-HJKMNP-TV-Z]{25}", value_id) for value_id in ids)


def test_names_are_unique_and_lead_to_the_ids_that_packages_gives(packages, puts):
    ids = {put["name"]: put["valueId"] for put in puts}

    assert len(ids) == len(puts)
    assert ids["package/libc6/own"] == packages.own_id("libc6")
    for kind in ("own", "exposed", "distance"):
        listed = getattr(packages, f"{kind}_ids")
        assert listed == [ids[f"package/{name}/{kind}"] for name in packages.names]


def test_a_value_more_than_three_a_package_is_spent_on_cycles_alone(packages, puts):
    """Each value costs storage and a place in the plan, so the encoding is as small as can be."""
    more = [put for put in puts if not put["name"].startswith("package/")]

    assert len(puts) == 3 * len(packages.names) + len(more)
    assert len(more) == 55
    assert all(len(put["inputs"]["values"]) > 1 for put in more)


def test_another_process_makes_the_same_batch(updates):
    """A second run must find its own values again, whatever the seed of Python's hashes."""
    script = (
        "import gc, hashlib, json; from debian_demo.graph import load_packages;"
        "gc.disable();"
        "print(hashlib.sha256(json.dumps(load_packages().updates()).encode()).hexdigest())"
    )
    other = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)

    digest = hashlib.sha256(json.dumps(updates).encode()).hexdigest()
    assert other.stdout.decode().strip() == digest


def test_a_fix_is_pending_where_the_reference_says_so(packages):
    assert {n for n in packages.names if packages.is_pending(n)} == reference.pending()


@pytest.mark.parametrize("ask", ["own_id", "is_pending"])
def test_a_misspelt_package_is_answered_with_those_that_come_close(packages, ask):
    with pytest.raises(UnknownPackage, match=r"'opensl'; did you mean .*openssl"):
        getattr(packages, ask)("opensl")


def test_a_package_like_no_other_is_answered_without_a_guess(packages):
    with pytest.raises(UnknownPackage, match=r"^no package is named '#'$"):
        packages.own_id("#")
