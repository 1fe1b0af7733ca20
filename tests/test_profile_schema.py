"""The schema of profiles: keys, defaults, ranges, and values that have a syntax of their own."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gguf_spec.errors import UsageError
from gguf_spec.profile import Profile, json_schema, parse_lora, parse_size, parse_spec_types
from gguf_spec.profile_text import parse_toml
from gguf_spec.profile_values import parse_memories
from tests.profile_files import flat, in_tmp, load, problems  # noqa: F401

GIB = 2**30

# The documented profile, every key of it. Values differ from the defaults where that is marked.
CONTRACT = r"""
description = "27B on a 24 GB card, MTP drafting"
[target]
model = "hf:owner/repo:Q4_K_M"
n_ctx = 32768            # or "max"
n_gpu_layers = "auto"
n_cpu_moe = 0
override_tensor = []
tensor_split = []
main_gpu = 0
devices = []
split_mode = "layer"
type_k = "f16"
type_v = "f16"
flash_attn = "auto"
swa_full = false
n_batch = 2048
n_ubatch = 512
n_threads = "auto"
n_threads_batch = "auto"
use_mmap = true
use_mlock = false
lora = []
[memory]
vram = "auto"
reserve = "1GiB"
prefer = "speed"
min_quant = "Q4_K_M"
draft_may_displace_layers = false
[spec]
types = ["ngram-mod", "draft-mtp"]
n_max = "auto"
n_min = 0
p_min = 0.0
control = true
verify = "match"
draft_sampling = "auto"
exact = false
pool = "session"
translate = false
[spec.draft]
model = "hf:owner/small:Q8_0"
n_gpu_layers = "auto"
devices = []
type_k = "f16"
type_v = "f16"
n_ctx = "auto"
n_ubatch = "auto"
[spec.ngram-mod]
n_match = 24
n_min = 48
n_max = 64
[sampling]
temperature = 0.7
top_k = 40
top_p = 0.95
min_p = 0.05
repeat_penalty = 1.0
frequency_penalty = 0.0
presence_penalty = 0.0
penalty_last_n = 64
logit_bias = {}
stop = []
seed = -1
[chat]
system = ""
think = "auto"
template = {}
[engine]
kind = "inprocess"
"""

# What the contract only names, with llama.cpp's defaults (common/common.h).
NAMED_ONLY = """
[target]
rope_freq_base = 10000.0
rope_freq_scale = 0.5
rope_scaling = "yarn"
yarn_ext_factor = -1.0
yarn_attn_factor = 1.0
yarn_beta_fast = 32.0
yarn_beta_slow = 1.0
yarn_orig_ctx = 4096
[spec.ngram-simple]
size_n = 12
size_m = 48
[spec.ngram-map-k]
size_n = 12
size_m = 48
min_hits = 1
[spec.ngram-map-k4v]
size_n = 12
size_m = 48
min_hits = 1
[spec.ngram-cache]
n_draft = 8
[spec.draft-simple]
n_max = 8
[spec.draft-mtp]
n_max = 3
[spec.draft-eagle3]
[spec.draft-dflash]
[spec.draft-dspark]
[sampling]
dry_multiplier = 0.0
dry_base = 1.75
dry_allowed_length = 2
dry_penalty_last_n = 64
xtc_probability = 0.0
xtc_threshold = 0.1
mirostat = 0
mirostat_tau = 5.0
mirostat_eta = 0.1
dynatemp_range = 0.0
dynatemp_exponent = 1.0
"""


# ---------------------------------------------------------------------------- schema


def test_every_documented_key_is_accepted_with_its_value() -> None:
    profile = load(CONTRACT)
    assert profile.target.model == "hf:owner/repo:Q4_K_M"
    assert profile.target.n_ctx == 32768
    assert profile.spec.types == ("ngram-mod", "draft-mtp")
    assert profile.spec.draft.model == "hf:owner/small:Q8_0"
    assert profile.memory.reserve == GIB
    written = flat(parse_toml(CONTRACT))
    assert set(flat(profile.model_dump(by_alias=True, exclude_unset=True))) == set(written)


def test_defaults_are_the_documented_ones() -> None:
    default = flat(Profile().model_dump(by_alias=True))
    examples = {"description", "target.model", "target.n_ctx", "spec.types", "spec.draft.model"}
    sizes = {"memory.reserve": GIB}
    for key, value in flat(parse_toml(CONTRACT)).items():
        if key not in examples:
            wanted = sizes.get(key, tuple(value) if isinstance(value, list) else value)
            assert default[key] == wanted, key
    assert Profile().target.n_ctx is None
    assert Profile().spec.types == ("auto",)


def test_keys_named_in_passing_are_accepted_and_default_to_llama_cpp() -> None:
    profile = load(NAMED_ONLY)
    default = flat(Profile().model_dump(by_alias=True))
    for key, value in flat(parse_toml(NAMED_ONLY)).items():
        if key.startswith(("spec.ngram", "sampling.")):
            assert default[key] == value, key
    assert profile.target.rope_scaling == "yarn"


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ('target.n_ctx = "max"', "max"),
        ('target.n_ctx = "auto"', None),
        ('target.n_gpu_layers = "all"', "all"),
        ("target.n_gpu_layers = -1", -1),
        ("target.n_threads = 4", 4),
        ("target.tensor_split = [3, 1]", (3.0, 1.0)),
        ('target.devices = "CUDA0,CUDA1"', ("CUDA0", "CUDA1")),
        ("target.override_tensor = ['blk\\.(1|2)\\.ffn_.*_exps=CPU']",
         ("blk\\.(1|2)\\.ffn_.*_exps=CPU",)),
        ('memory.vram = "24GB"', (24 * GIB,)),
        ('memory.vram = ["24GiB", "16GiB"]', (24 * GIB, 16 * GIB)),
        ("memory.reserve = 0", 0),
        ('spec.types = ["mtp", "ngram", "draft-mtp"]', ("draft-mtp", "ngram-mod")),
        ("spec.n_max = 16", 16),
        ("sampling.temperature = 0", 0.0),
        ("sampling.logit_bias = {15 = -inf, 7 = 1}", {15: -math.inf, 7: 1.0}),
        ('chat.template = {enable_thinking = true, names = ["a"]}',
         {"enable_thinking": True, "names": ["a"]}),
    ],
)  # fmt: skip
def test_value_forms(line: str, value: object) -> None:
    profile = load(line)
    table, key = line.split(" = ")[0].split(".")
    assert getattr(getattr(profile, table), key) == value


@pytest.mark.parametrize(
    "line",
    [
        "target.n_ctx = 0", "target.n_ctx = true", 'target.n_batch = "2048"', "target.n_batch = 0",
        "target.n_gpu_layers = -2", 'target.n_gpu_layers = "some"', 'target.type_k = "q4_k"',
        "target.flash_attn = true", 'target.split_mode = "rows"', 'target.override_tensor = ["x"]',
        "target.tensor_split = [0, 0]", "target.tensor_split = [-1]", 'target.model = ""',
        "target.lora = [1]", "target.n_threads = 0", "target.use_mmap = 1",
        'memory.reserve = "-1G"', 'memory.vram = ["x"]', "memory.vram = 24",
        'memory.min_quant = "Q4 K"',
        'memory.prefer = "size"', "spec.p_min = 1.5", "spec.n_max = -1", "spec.types = []",
        'spec.types = ["auto", "ngram"]', 'spec.verify = "exact"', "spec.ngram-mod.n_match = 0",
        "spec.ngram-simple.size_n = 1025", "sampling.temperature = -0.1", "sampling.top_p = nan",
        "sampling.temperature = inf", "sampling.top_k = 1.5", "sampling.mirostat = 3",
        "sampling.seed = -2", 'sampling.logit_bias = {" a" = 1}', "sampling.logit_bias = {1 = nan}",
        'sampling.stop = [""]', "chat.system = 1", 'chat.think = "yes"',
        "chat.template = {a = 2024-01-01}", 'engine.kind = "vllm"', "extends = 1",
        "target = 1", "description = []", "sampling.seed = 0x" + "F" * 9000,
    ],
)  # fmt: skip
def test_wrong_values_are_refused_with_their_line(line: str) -> None:
    (problem,) = problems(f"# a comment\n\n{line}\n")
    assert "0x" in line or problem.startswith("p.toml:3: "), problem
    assert "Traceback" not in problem
    assert "Input should" not in problem


# ------------------------------------------------------------------------------ values


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (0, 0), (123, 123), ("123", 123), ("5B", 5), ("1K", 1024), ("1kb", 1024), ("1KiB", 1024),
        ("2M", 2**21), ("2MB", 2**21), ("24GB", 24 * GIB), ("24g", 24 * GIB),
        (" 24 GiB ", 24 * GIB),
        ("1.5GiB", 3 * 2**29), (".5G", 2**29), ("1T", 2**40), ("1TiB", 2**40), ("0.3K", 307),
    ],
)  # fmt: skip
def test_parse_size(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    ["", "-1", "-1G", -1, "1.5", "1.5B", "G", "1iB", "1e9", "1PB", "1 2", "0x10", "٣G", "nan", True,
     None, 1.5, "9" * 50, 10**4000, "99999999T", "1G!"],
)  # fmt: skip
def test_parse_size_refuses(text: Any) -> None:
    with pytest.raises(UsageError):
        parse_size(text)


def test_parse_spec_types() -> None:
    assert parse_spec_types("ngram, mtp") == ("ngram-mod", "draft-mtp")
    assert parse_spec_types(["draft", "eagle3", "dflash", "dspark"]) == (
        "draft-simple", "draft-eagle3", "draft-dflash", "draft-dspark",
    )  # fmt: skip
    assert parse_spec_types("NGRAM_MAP_K4V,ngram-map-k4v") == ("ngram-map-k4v",)
    assert parse_spec_types("auto") == ("auto",)
    assert parse_spec_types("none") == ("none",)


@pytest.mark.parametrize(
    ("types", "message"),
    [
        ("ngram-simpel", "did you mean `ngram-simple`"),
        ("auto,ngram", "cannot be combined"),
        (["none", "auto"], "cannot be combined"),
        ("", "unknown spec type"),
        ([], "empty"),
        ([1], "is a text"),
        ("medusa", "not in llama.cpp.*draft-mtp"),
        ("layer-skip", "not in llama.cpp.*draft-simple"),
        ("layerskip", "not in llama.cpp"),
        ("self-speculative", "not in llama.cpp"),
        ("lookahead", "not in llama.cpp.*ngram"),
    ],
)
def test_parse_spec_types_refuses(types: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_spec_types(types)


def test_parse_lora() -> None:
    assert parse_lora("a.gguf") == ("a.gguf", 1.0)
    assert parse_lora("a.gguf:0.5") == ("a.gguf", 0.5)
    assert parse_lora("hf:o/r:Q8_0") == ("hf:o/r:Q8_0", 1.0)
    assert parse_lora("C:\\a.gguf") == ("C:\\a.gguf", 1.0)


def test_json_schema_describes_every_key() -> None:
    schema = json_schema()
    tables = [schema, *schema["$defs"].values()]
    for table in tables:
        assert table["additionalProperties"] is False
        assert table["description"]
        for key, value in table["properties"].items():
            assert value.get("description"), key
    assert "ngram-mod" in schema["$defs"]["Spec"]["properties"]
    assert len(tables) == 12


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("24GiB", (24 * GIB,)), ("24 GB", (24 * GIB,)), ("24gib,16gib", (24 * GIB, 16 * GIB)),
        ("24GiB, 16 GiB", (24 * GIB, 16 * GIB)), ("0", (0,)), (str(24 * GIB), (24 * GIB,)),
        ("1M", (2**20,)),
    ],
)  # fmt: skip
def test_parse_memories(text: str, sizes: tuple[int, ...]) -> None:
    assert parse_memories(text) == sizes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("24", "'24' is 24 bytes, which is no memory to plan with; did you mean 24GiB?"),
        ("24GiB,16", "'16' is 16 bytes, which is no memory to plan with; did you mean 16GiB?"),
        ("24B", "did you mean 24GiB?"),
        ("512K", "524288 bytes"),
        ("-1", "is not a size"), ("1e3", "is not a size"), ("24GiB,", "is not a size"),
        ("", "is not a size"), ("24 gigs", "is not a size"), ("1.5", "add a unit"),
    ],
)  # fmt: skip
def test_parse_memories_refuses(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_memories(text)
    assert message in caught.value.message
    assert caught.value.exit_code == 2
    assert ("did you mean" in caught.value.message) is ("did you mean" in message)
