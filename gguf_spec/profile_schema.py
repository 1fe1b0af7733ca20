"""What a profile may say: one model per TOML table, unknown keys refused, nothing changed later.

Names that llama.cpp has too are spelled as llama.cpp spells them and mean the same. A field's
description is what ``profiles schema`` hands to editors. Checks that need one key only stand with
the key; those that need two are in ``profile_cross``, because a profile may take one of the two
from the profile that it extends.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from gguf_spec.profile_numbers import (
    AutoCount,
    AutoNatural,
    Count,
    DryBase,
    DryMultiplier,
    GpuLayers,
    Lookback,
    Mirostat,
    Natural,
    NgramLength,
    NonNegative,
    Penalty,
    Probability,
    RepeatPenalty,
    RopeBase,
    RopeScale,
    Threads,
    TopK,
    YarnBeta,
    YarnFactor,
)
from gguf_spec.profile_values import (
    CacheType,
    ContextLength,
    Devices,
    LogitBias,
    OverrideTensors,
    QuantName,
    Size,
    SpecTypes,
    TemplateArguments,
    TensorSplit,
    Text,
    Texts,
    Vram,
)

OnOffAuto = Literal["on", "off", "auto"]
DraftType = Literal["draft-simple", "draft-mtp", "draft-eagle3", "draft-dflash", "draft-dspark"]


class Table(BaseModel):
    """Base of all tables: unknown keys are errors, values keep their type, nothing is assigned."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Target(Table):
    """The model whose text is wanted, its context and its placement."""

    model: Text | None = Field(
        default=None,
        description="Model reference (REF); a relative path starts at this file's folder.",
    )
    n_ctx: ContextLength = Field(
        default=None,
        description='Context length in tokens, or "max" for what the model was trained on. '
        'Without it, or with "auto": the least of trained, 8192 and what fits.',
    )
    n_gpu_layers: GpuLayers = Field(
        default="auto",
        description='Layers on GPUs: "auto" is what fits, "all" or -1 is all of them.',
    )
    n_cpu_moe: Natural = Field(
        default=0, description="Number of first layers whose expert weights stay in host memory."
    )
    override_tensor: OverrideTensors = Field(
        default=(), description='Where tensors go, as "PATTERN=BUFFER": "ffn_.*_exps=CPU".'
    )
    tensor_split: TensorSplit = Field(
        default=(),
        description="Share of the model for each device, as proportions; empty: by free memory.",
    )
    main_gpu: Natural = Field(
        default=0, description='Index of the GPU used alone with split_mode "none".'
    )
    devices: Devices = Field(default=(), description='Devices to use, as "CUDA0"; empty: all.')
    split_mode: Literal["none", "layer", "row", "tensor"] = Field(
        default="layer", description="How several GPUs share the model."
    )
    type_k: CacheType = Field(default="f16", description="Type of the cached keys.")
    type_v: CacheType = Field(
        default="f16", description="Type of the cached values; quantized ones need flash attention."
    )
    flash_attn: OnOffAuto = Field(default="auto", description="Flash attention.")
    swa_full: bool = Field(
        default=False, description="Keep the whole context for layers with a sliding window."
    )
    n_batch: Count = Field(default=2048, description="Most tokens handed over in one decode call.")
    n_ubatch: Count = Field(
        default=512,
        description="Most tokens computed at once; sets the size of the compute buffer.",
    )
    n_threads: Threads = Field(default="auto", description="CPU threads for single tokens.")
    n_threads_batch: Threads = Field(
        default="auto", description="CPU threads for prompts and drafts."
    )
    use_mmap: bool = Field(
        default=True, description="Map the file into memory instead of reading it."
    )
    use_mlock: bool = Field(default=False, description="Keep the model from being swapped out.")
    lora: Texts = Field(
        default=(),
        description='LoRA adapters, "file.gguf" or "file.gguf:0.5"; paths as for `model`.',
    )
    rope_freq_base: RopeBase | None = Field(
        default=None, description="RoPE base frequency; 0 or absent: the model's."
    )
    rope_freq_scale: RopeScale | None = Field(
        default=None, description="RoPE frequency factor; 0 or absent: the model's."
    )
    rope_scaling: Literal["none", "linear", "yarn"] | None = Field(
        default=None, description="RoPE scaling method; absent: the model's."
    )
    yarn_ext_factor: YarnFactor | None = Field(
        default=None, description="YaRN extrapolation mix; negative or absent: the model's."
    )
    yarn_attn_factor: YarnFactor | None = Field(
        default=None, description="YaRN attention magnitude; negative or absent: the model's."
    )
    yarn_beta_fast: YarnBeta | None = Field(
        default=None, description="YaRN low correction dimension; negative or absent: the model's."
    )
    yarn_beta_slow: YarnBeta | None = Field(
        default=None, description="YaRN high correction dimension; negative or absent: the model's."
    )
    yarn_orig_ctx: Natural | None = Field(
        default=None, description="Context length before YaRN, in tokens; 0 or absent: the model's."
    )


class Memory(Table):
    """How much memory there is to plan with. Units of a SIZE are binary: "24GB" is 24 GiB."""

    vram: Vram = Field(
        default="auto",
        description="Device memory: what is free, one SIZE, or one SIZE for each device.",
    )
    reserve: Size = Field(default=2**30, description="SIZE that stays free on every device.")
    prefer: Literal["speed", "quality"] = Field(
        default="speed", description="Whether the better quantization may push layers off the GPU."
    )
    min_quant: QuantName = Field(
        default="Q4_K_M", description="The smallest quantization that is ever chosen."
    )
    draft_may_displace_layers: bool = Field(
        default=False, description="Whether a draft may take GPU memory from the target's layers."
    )


class Draft(Table):
    """A draft in a file of its own. A key that is absent here is taken from [spec.draft]."""

    model: Text | None = Field(
        default=None,
        description="Model reference of the draft; a relative path starts at this file.",
    )
    n_gpu_layers: GpuLayers = Field(default="auto", description="Layers of the draft on GPUs.")
    devices: Devices = Field(default=(), description="Devices for the draft; empty: the target's.")
    type_k: CacheType = Field(default="f16", description="Type of the draft's cached keys.")
    type_v: CacheType = Field(default="f16", description="Type of the draft's cached values.")
    n_ctx: AutoCount = Field(
        default="auto", description="Context of the draft; auto: the target's."
    )
    n_ubatch: AutoCount = Field(default="auto", description="Tokens the draft computes at once.")
    n_max: AutoNatural = Field(
        default="auto", description="Most tokens in a draft of this type; absent: n_max of [spec]."
    )
    n_min: Natural = Field(
        default=0, description="Shorter drafts of this type are dropped; absent: n_min of [spec]."
    )
    p_min: Probability = Field(
        default=0.0, description="Drafting stops under this probability; absent: p_min of [spec]."
    )


class NgramSimple(Table):
    """ngram-simple: continue as after the latest earlier occurrence of the last tokens."""

    size_n: NgramLength = Field(default=12, description="Tokens that have to match.")
    size_m: NgramLength = Field(default=48, description="Most tokens in a draft.")


class NgramMap(Table):
    """ngram-map-k and ngram-map-k4v: as ngram-simple, with memory of what was accepted."""

    size_n: NgramLength = Field(default=12, description="Tokens that have to match.")
    size_m: NgramLength = Field(default=48, description="Most tokens in a draft.")
    min_hits: NgramLength = Field(default=1, description="Times an n-gram is met before it drafts.")


class NgramMod(Table):
    """ngram-mod: a hash table from the last tokens to the next one, walked token by token."""

    n_match: NgramLength = Field(default=24, description="Tokens that are hashed together.")
    n_min: Annotated[int, Field(ge=0, le=1024)] = Field(
        default=48, description="Drafts with fewer tokens are dropped."
    )
    n_max: Annotated[int, Field(ge=0, le=1024)] = Field(
        default=64, description="Most tokens in a draft."
    )


class NgramCache(Table):
    """ngram-cache: counts of what followed the last one to four tokens."""

    n_draft: NgramLength = Field(default=8, description="Most tokens in a draft.")
    lookup_cache_static: Text | None = Field(
        default=None, description="File with counts that generation does not change."
    )
    lookup_cache_dynamic: Text | None = Field(
        default=None, description="File with counts from earlier generations."
    )


class Spec(Table):
    """Speculative decoding: what drafts, how much, and how drafts are verified."""

    types: SpecTypes = Field(
        default=("auto",),
        description='Spec types in order of preference, or ["auto"], or ["none"].',
    )
    n_max: AutoNatural = Field(
        default="auto", description="A ceiling in tokens for drafts of every type; auto: measured."
    )
    n_min: Natural = Field(default=0, description="Drafts with fewer tokens are dropped.")
    p_min: Probability = Field(
        default=0.0, description="A draft model stops under this probability."
    )
    control: bool = Field(
        default=True,
        description="Measure how much to draft, and pause where drafting does not pay.",
    )
    verify: Literal["match", "residual", "auto"] = Field(
        default="match", description="match keeps the seed's text, residual keeps the distribution."
    )
    draft_sampling: Literal["auto", "greedy", "coupled", "own"] = Field(
        default="auto", description="How a draft model samples; coupled uses the target's noise."
    )
    exact: bool = Field(
        default=False,
        description="Keep to settings under which text is token-identical to plain decoding.",
    )
    pool: Literal["request", "session", "profile"] = Field(
        default="session", description="How long n-gram drafters remember text."
    )
    translate: bool = Field(
        default=False, description="Allow draft models that have another tokenizer."
    )
    draft: Draft = Field(default=Draft(), description="Default for drafts in a file of their own.")
    draft_simple: Draft = Field(
        default=Draft(),
        alias="draft-simple",
        description="A smaller model with the same vocabulary.",
    )
    draft_mtp: Draft = Field(
        default=Draft(), alias="draft-mtp", description="A multi-token prediction head."
    )
    draft_eagle3: Draft = Field(
        default=Draft(), alias="draft-eagle3", description="An EAGLE-3 head."
    )
    draft_dflash: Draft = Field(default=Draft(), alias="draft-dflash", description="A DFlash head.")
    draft_dspark: Draft = Field(default=Draft(), alias="draft-dspark", description="A DSpark head.")
    ngram_simple: NgramSimple = Field(
        default=NgramSimple(), alias="ngram-simple", description="Parameters of ngram-simple."
    )
    ngram_map_k: NgramMap = Field(
        default=NgramMap(), alias="ngram-map-k", description="Parameters of ngram-map-k."
    )
    ngram_map_k4v: NgramMap = Field(
        default=NgramMap(), alias="ngram-map-k4v", description="Parameters of ngram-map-k4v."
    )
    ngram_mod: NgramMod = Field(
        default=NgramMod(), alias="ngram-mod", description="Parameters of ngram-mod."
    )
    ngram_cache: NgramCache = Field(
        default=NgramCache(), alias="ngram-cache", description="Parameters of ngram-cache."
    )


class Sampling(Table):
    """How a token is chosen. A key that is absent is taken from the model's own defaults first."""

    temperature: NonNegative = Field(default=0.7, description="0 is greedy.")
    top_k: TopK = Field(default=40, description="Keep this many tokens; 0 or -1: all.")
    top_p: Probability = Field(
        default=0.95, description="Keep the top tokens of this mass; 1: all."
    )
    min_p: Probability = Field(
        default=0.05,
        description="Drop tokens less likely than this share of the likeliest; 0: none.",
    )
    repeat_penalty: RepeatPenalty = Field(
        default=1.0, description="Divides the logits of recent tokens; 1: off."
    )
    frequency_penalty: Penalty = Field(
        default=0.0, description="Subtracted per recent occurrence; 0: off."
    )
    presence_penalty: Penalty = Field(default=0.0, description="Subtracted once if recent; 0: off.")
    penalty_last_n: Lookback = Field(
        default=64, description="Tokens the penalties look back; 0: off, -1: all."
    )
    dry_multiplier: DryMultiplier = Field(
        default=0.0, description="DRY repetition penalty; 0: off."
    )
    dry_base: DryBase = Field(default=1.75, description="Base of the DRY penalty.")
    dry_allowed_length: Natural = Field(
        default=2, description="Repeated tokens that DRY lets pass."
    )
    dry_penalty_last_n: Lookback = Field(
        default=64, description="Tokens that DRY looks back; 0: off, -1: all."
    )
    xtc_probability: Probability = Field(default=0.0, description="Chance that XTC acts; 0: off.")
    xtc_threshold: Probability = Field(
        default=0.1, description="XTC threshold; above 0.5 XTC is off."
    )
    mirostat: Annotated[int, Field(ge=0, le=2)] = Field(
        default=0, description="Mirostat version; 0: off."
    )
    mirostat_tau: Mirostat = Field(default=5.0, description="Mirostat target entropy.")
    mirostat_eta: Mirostat = Field(default=0.1, description="Mirostat learning rate.")
    dynatemp_range: NonNegative = Field(
        default=0.0, description="Dynamic temperature range; 0: off."
    )
    dynatemp_exponent: NonNegative = Field(default=1.0, description="Dynamic temperature exponent.")
    logit_bias: LogitBias = Field(
        default={}, description="Token id = bias; -inf forbids the token."
    )
    stop: Texts = Field(default=(), description="Texts at which generation ends.")
    seed: Annotated[int, Field(ge=-1, le=2**32 - 1)] = Field(
        default=-1, description="Seed of the noise; -1: another one for every run."
    )


class Chat(Table):
    """How messages become a prompt."""

    system: str = Field(default="", description="System message; empty: none.")
    think: OnOffAuto = Field(default="auto", description="Whether a reasoning model may reason.")
    reasoning_effort: Literal["auto", "low", "medium", "high"] = Field(
        default="auto", description="How much to reason, where the chat template takes that."
    )
    think_budget: Lookback = Field(
        default=-1,
        description="Most tokens of reasoning; then the answer is forced to begin. -1: no limit.",
    )
    template: TemplateArguments = Field(default={}, description="Arguments for the chat template.")


class Engine(Table):
    """What runs the model."""

    kind: Literal["inprocess", "llama-server", "openai"] = Field(
        default="inprocess",
        description="In this process, by llama-server, or behind an OpenAI-style API.",
    )


class Profile(Table):
    """Everything a user may ask for; what is absent keeps its default."""

    description: str = Field(default="", description="One line for `profiles list`.")
    extends: Text | None = Field(
        default=None, description="A profile to start from: tables merge, arrays replace."
    )
    target: Target = Field(default=Target(), description="The model whose text is wanted.")
    memory: Memory = Field(default=Memory(), description="How much memory there is to plan with.")
    spec: Spec = Field(default=Spec(), description="Speculative decoding.")
    sampling: Sampling = Field(default=Sampling(), description="How a token is chosen.")
    chat: Chat = Field(default=Chat(), description="How messages become a prompt.")
    engine: Engine = Field(default=Engine(), description="What runs the model.")


def draft_settings(spec: Spec, kind: DraftType) -> Draft:
    """Resolve one draft type: its own table, then [spec.draft], then [spec], then the defaults."""
    own: Draft = getattr(spec, kind.replace("-", "_"))
    values: dict[str, object] = {"n_max": spec.n_max, "n_min": spec.n_min, "p_min": spec.p_min}
    for table in (spec.draft, own):
        values.update({name: getattr(table, name) for name in table.model_fields_set})
    return Draft.model_validate(values)
