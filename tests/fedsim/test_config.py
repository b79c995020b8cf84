"""Config: settings from text and JSON, and one line for everything that is wrong."""

import json
import math
from dataclasses import dataclass

import pytest

from fedsim.algorithms import ALGORITHMS, Algorithm
from fedsim.config import Config
from fedsim.errors import InputError

# setting, what the message must name besides key and value
WRONG = [
    ("rounds=-1", "at least 0"),
    ("rounds=2.5", "integer"),
    ("clients=0", "at least 1"),
    ("clients=many", "at least 1"),
    ("participants=6", "clients=5"),
    ("participants=0", "at least 1"),
    ("local_steps=0", "at least 1"),
    ("local_epochs=1", "local_steps"),  # the quadratic has no samples
    ("batch=0", "at least 1"),
    ("eta_l=0", "above 0"),
    ("eta_l=nan", "above 0"),
    ("eta=inf", "finite"),
    ("eta=-1", "above 0"),
    ("lam=0", "above 0"),
    ("lam=-3", "above 0"),
    ("lam=nan", "above 0"),
    ("noise_alpha=0", "at most 2"),
    ("noise_alpha=2.1", "at most 2"),
    ("noise_alpha=nan", "at most 2"),
    ("noise_scale=-1", "at least 0"),
    ("noise=levy", "cauchy"),
    ("concentration=0", "above 0"),
    ("algorithm=fedprox", "fatclip-pi"),
    ("problem=svm", "mnist-logistic"),
    ("delta=model", "displacement"),
    ("reduce=median", "mean"),
    ("partition=roles", "shakespeare-lstm"),
    ("engine=fast", "stacked"),
    ("dtype=float16", "float64"),
    ("device=tpu", "cpu"),
    ("seed=-1", "0"),
    ("workers=0", "at least 1"),
    ("cohort=0", "at least 1"),
    ("eval_every=0", "at least 1"),
    ("on_client_error=ignore", "reject"),
]


@pytest.mark.parametrize(("setting", "right"), WRONG)
def test_a_wrong_value_is_named_in_one_line_with_what_would_be_right(setting, right):
    with pytest.raises(InputError) as caught:
        Config().with_settings([setting])
    message = str(caught.value)
    assert setting in message
    assert right in message
    assert "\n" not in message


def test_an_unknown_key_is_refused_with_the_nearest_known_one():
    with pytest.raises(InputError, match=r"unknown key 'lambda'"):
        Config().with_settings(["lambda=3"])
    with pytest.raises(InputError, match="did you mean clients"):
        Config.from_dict({"client": 3})
    with pytest.raises(InputError, match="key=value"):
        Config().with_settings(["rounds"])


def test_a_key_is_set_once():
    with pytest.raises(InputError, match="lam is set twice, to 1 and to 3"):
        Config().with_settings(["lam=1", "eta=2", "lam=3"])


def test_steps_and_epochs_exclude_each_other():
    base = {"problem": "mnist-logistic"}
    with pytest.raises(InputError, match="local_steps=2 and local_epochs=3"):
        Config(**base, local_steps=2, local_epochs=3)
    with pytest.raises(InputError, match="local_steps=2 and local_epochs=3"):
        Config(**base).with_settings(["local_steps=2", "local_epochs=3"])
    assert Config(**base).local_steps == 1
    assert Config(**base).local_epochs is None
    epochs = Config(**base, local_steps=4).with_settings(["local_epochs=3"])
    assert (epochs.local_steps, epochs.local_epochs) == (None, 3)
    steps = epochs.with_settings(["local_steps=4"])
    assert (steps.local_steps, steps.local_epochs) == (4, None)


@pytest.mark.parametrize(("clients", "classes", "good"), [(100, 1, True), (10, 2, True), (5, 2, True), (7, 2, False)])
def test_classes_per_client_has_to_divide(clients, classes, good):
    settings = {"problem": "cifar10-cnn", "partition": "classes", "clients": clients, "classes_per_client": classes}
    if good:
        Config(**settings)
        return
    with pytest.raises(InputError, match=f"classes_per_client={classes} with clients={clients} does not divide"):
        Config(**settings)


def test_more_classes_than_there_are_is_refused():
    with pytest.raises(InputError, match="classes_per_client=11 is more than the 10 classes"):
        Config(problem="mnist-mlp", partition="classes", classes_per_client=11, clients=10)


def test_noise_belongs_to_the_quadratic_problem():
    with pytest.raises(InputError, match="noise=cauchy belongs to the quadratic problem"):
        Config(problem="mnist-logistic", noise="cauchy")


@pytest.mark.parametrize("algorithm", ["gclip", "sgd"])
def test_the_centralised_algorithms_have_one_client_and_one_step(algorithm):
    config = Config(algorithm=algorithm, clients=5, participants=2, local_steps=3)
    assert (config.clients, config.participants, config.local_steps) == (1, None, 1)


def test_settings_survive_json():
    config = Config(problem="mnist-logistic", clients=100, participants=10, local_epochs=2, partition="classes", seed=7)
    assert config.lam == math.inf
    text = json.dumps(config.to_dict(), allow_nan=False)
    assert Config.from_dict(json.loads(text)) == config
    assert json.loads(text)["lam"] == "inf"


def test_text_becomes_numbers_and_none():
    config = Config().with_settings(["lam=inf", "eta=1e-2", "participants=none", "cohort=None", "rounds=0"])
    assert (config.lam, config.eta, config.participants, config.cohort) == (math.inf, 0.01, None, None)
    assert config.rounds == 0
    assert config.with_settings(["lam=3"]).lam == 3.0


def test_a_boolean_is_no_number():
    with pytest.raises(InputError, match="rounds=True"):
        Config(rounds=True)
    with pytest.raises(InputError, match="eta=True"):
        Config(eta=True)


@dataclass
class Typed(Algorithm):
    """Settings of every type."""

    times: int = 2
    flag: bool = True
    word: str = "a"
    share: float = 1


class Taken(Algorithm):
    """A setting with a name that every run has."""

    rounds: int = 3


@pytest.fixture
def _typed(monkeypatch):
    monkeypatch.setitem(ALGORITHMS, "typed", Typed)
    monkeypatch.setitem(ALGORITHMS, "taken", Taken)


@pytest.mark.usefixtures("_typed")
def test_settings_of_an_algorithm_have_the_types_of_its_fields():
    usual = Config(algorithm="typed")
    given = usual.with_settings(["times=3", "flag=false", "word=b", "share=0.5"])
    assert given.options == {"times": 3, "flag": False, "word": "b", "share": 0.5}
    assert range(given.new_algorithm().times) == range(3)
    assert Config.from_dict(json.loads(json.dumps(given.to_dict()))) == given
    for setting, right in (("times=3.5", "an integer"), ("flag=2", "true or false"), ("share=x", "a number")):
        with pytest.raises(InputError, match=f"{setting} must be {right}"):
            usual.with_settings([setting])


@pytest.mark.usefixtures("_typed")
def test_a_setting_of_an_algorithm_takes_no_name_that_every_run_has():
    for make in (Config, Config().with_values):
        with pytest.raises(InputError, match="taken adds the setting 'rounds', but every run has one of that name"):
            make(algorithm="taken") if make is Config else make({"algorithm": "taken", "rounds": 4})


def test_what_no_user_sets_is_refused():
    for values in ({"options": 3}, {"own": "3"}):
        with pytest.raises(InputError, match=next(iter(values))):
            Config(**values)
        with pytest.raises(InputError, match=next(iter(values))):
            Config().with_settings([f"{key}=3" for key in values])


@pytest.mark.parametrize("text", ["quantile:0.8", "quantile:0.8:3", "quantile:0.1234567:1234567", "quantile:0.5:1e-07"])
def test_a_quantile_keeps_all_its_digits(text):
    assert Config(lam=text).lam == text
    assert Config(lam=text).new_threshold().q == float(text.split(":")[1])
