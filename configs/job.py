"""The job: one YAML file, as frozen data.

Units stand in the names (`_s` seconds, `_tokens`, `_bytes`). Unknown keys are errors (see `load`).
A field's description is the reason that it exists; `docs/job.md` is generated from them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StringConstraints, field_validator, model_validator

TaskName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,62}$")]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,126}$")]
Text = Annotated[str, StringConstraints(min_length=1)]


class Section(BaseModel):
    """Base of every section: frozen, and no key passes unread."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())


class Columns(Section):
    """Which input column plays which part. Only one of `prompt` and `messages` may be set; unset parts are guessed
    from the names below. A task's template may use any column."""

    id: str | None = Field(None, description="row id; default: column `id` if present, else content hash + ordinal")
    task: str | None = Field(None, description="task label; default: column `task` if present, else `default`")
    prompt: str | None = Field(None, description="the user's text; default: column `prompt`")
    messages: str | None = Field(None, description="chat messages; default: column `messages`")

    @model_validator(mode="after")
    def _one_prompt(self) -> Columns:
        if self.prompt is not None and self.messages is not None:
            raise ValueError(f"both prompt ({self.prompt}) and messages ({self.messages}) are set; keep one")
        return self


class Source(Section):
    """Where the rows come from."""

    path: str | tuple[str, ...] = Field(
        description="file, folder or glob, local or s3://, or run:<id>, or a list of them; a relative path starts at "
        "the job file's folder, in --set at the working directory"
    )
    format: Literal["auto", "jsonl", "parquet", "csv", "openai_batch", "hf_dataset"] = Field(
        "auto", description="auto goes by the file's ending, and by the first line for OpenAI batch files"
    )
    columns: Columns = Columns()
    rename: dict[str, str] = Field(
        default_factory=dict, description="input column -> new name, for columns that clash with output columns"
    )
    limit: int | None = Field(None, ge=1, description="read only the first rows; for trials")

    @field_validator("path")
    @classmethod
    def _names_something(cls, path: str | tuple[str, ...]) -> str | tuple[str, ...]:
        paths = (path,) if isinstance(path, str) else path
        if not paths or not all(each.strip() for each in paths):
            raise ValueError("it names no file")
        if any("\0" in each for each in paths):
            raise ValueError("it holds a NUL character, which no path can")
        return path


class Sampling(Section):
    """How tokens are chosen. A row may override every field but `stop_token_ids` and `ignore_eos`."""

    temperature: float = Field(0.0, ge=0.0, le=5.0, description="0 is greedy")
    top_p: float = Field(1.0, gt=0.0, le=1.0, description="nucleus: smallest set with this probability mass")
    top_k: int = Field(0, ge=0, description="keep the k most likely tokens; 0 keeps all")
    min_p: float = Field(0.0, ge=0.0, le=1.0, description="drop tokens below this fraction of the most likely one")
    repetition_penalty: float = Field(1.0, gt=0.0, le=10.0, description="1 is none (Keskar et al., 2019)")
    max_tokens: int = Field(256, ge=1, description="output tokens per sample at most")
    stop: tuple[Text, ...] = Field((), max_length=16, description="text that ends a sample; not part of the output")
    stop_token_ids: tuple[int, ...] = Field((), description="tokens that end a sample, beside the model's own")
    ignore_eos: bool = Field(False, description="generate max_tokens whatever the model says; for benchmarks")
    n: int = Field(1, ge=1, le=128, description="samples per row")
    seed: int | None = Field(None, ge=0, lt=2**63, description="the row's noise; default: the job's seed")

    @property
    def is_greedy(self) -> bool:
        """The likeliest token is taken. Dividing by a temperature below this would overflow."""
        return self.temperature < 1e-5


Drafter = Literal["eagle3", "model", "ngram", "none"]
KVDtype = Literal["auto", "float32", "bfloat16", "float8_e4m3"]
Acceptance = Literal["match", "rejection", "threshold"]


class DraftTree(Section):
    """Several branches in place of one chain, k deep at most: more tokens per round, for more work (eagle3 only)."""

    top_k: int = Field(4, ge=1, le=8, description="drafts after each node, and nodes followed at each depth")
    max_nodes: int = Field(16, ge=1, le=60, description="drafts verified per round: those of the likeliest paths")
    min_path_probability: float = Field(
        0.0, ge=0.0, lt=1.0, description="a branch ends where the drafter gives its path less than this"
    )


class Fallback(Section):
    """Plain decoding for a while where drafts are refused."""

    after: int = Field(2, ge=1, description="rounds on end whose drafts were all refused")
    for_rounds: int = Field(8, ge=1, description="rounds of a sample then decoded without drafts")


class DraftPolicy(Section):
    """How long drafts are for a task. K, the draft length, is how many tokens are proposed per verification."""

    policy: Literal["auto", "fixed", "off"] = Field(
        "auto",
        description="auto takes the K that commits the most tokens per second, 0 included; off is plain decoding",
    )
    k: int | None = Field(None, ge=0, le=8, description="draft length under fixed, where the default is 3; 0 is plain")
    max_k: int = Field(8, ge=0, le=8, description="longest draft under auto")
    drafter: Drafter | None = Field(None, description="default: the job's drafter")
    drafters: tuple[Drafter, ...] | None = Field(
        None, min_length=1, description="those that auto chooses from; default: drafter, and ngram beside it"
    )
    tree: DraftTree | None = Field(None, description="under fixed; default: a chain")
    fallback: Fallback | None = Field(None, description="default: drafts in every round that K asks for")

    @field_validator("policy", mode="before")
    @classmethod
    def _bare_off(cls, value: Any) -> Any:
        return "off" if value is False else value  # YAML 1.1 reads a bare `off` as false

    @model_validator(mode="after")
    def _fits_its_policy(self) -> DraftPolicy:
        if self.policy == "auto" and self.k is not None:
            raise ValueError(f"k {self.k} goes with policy: fixed; auto finds its own, and max_k bounds it")
        if self.policy == "auto" and self.tree is not None:
            raise ValueError("a tree goes with policy: fixed; auto drafts chains")
        if self.policy != "auto" and self.drafters is not None:
            raise ValueError(f"drafters goes with policy: auto; {self.policy} has one drafter")
        if self.drafters is not None and self.drafter is not None:
            raise ValueError("both drafter and drafters are set; keep one")
        return self

    @property
    def bounds(self) -> tuple[int, int]:
        """The shortest and the longest draft."""
        if self.policy == "auto":
            return 0, self.max_k
        k = 0 if self.policy == "off" else 3 if self.k is None else self.k
        return k, k

    def candidates(self, default: Drafter) -> tuple[Drafter, ...]:
        """Drafters in order of preference, `none` left out; `default` is the job's."""
        if self.drafters is not None:
            return tuple(name for name in dict.fromkeys(self.drafters) if name != "none")
        drafter = self.drafter or default
        if self.bounds[1] == 0 or drafter == "none":
            return ()
        return (drafter, "ngram") if self.policy == "auto" and drafter != "ngram" else (drafter,)


class Task(Section):
    """What a label on a row means."""

    template: str | None = Field(None, description="Jinja over the input columns; default: the prompt column as it is")
    system: str | None = Field(None, description="system prompt (Jinja too); ignored if messages bring their own")
    sampling: Sampling = Sampling()
    draft: DraftPolicy | None = Field(None, description="default: the job's draft section")
    too_long: Literal["fail_row", "cut_start", "cut_end"] = Field(
        "fail_row", description="a prompt over the limit fails, or its longest user message loses its start or end"
    )
    chat_template_kwargs: dict[str, JsonValue] = Field(
        default_factory=dict, description="variables for the chat template, e.g. enable_thinking: false"
    )
    acceptance: Acceptance = Field(
        "match",
        description="which drafts are kept: match and rejection leave the output's law as it is (rejection keeps more "
        "at high temperature, and its text depends on the drafts); threshold is lossy and marked in every row",
    )
    acceptance_threshold: float = Field(
        0.3, gt=0.0, le=1.0, description="under threshold: drafts that the target finds so probable are kept"
    )
    deadline_s: float | None = Field(None, gt=0, description="a row that takes longer ends as error `timeout`")


class Model(Section):
    """The target model, whose distribution the output follows."""

    path: str = Field("smollm2-135m-instruct", description="a name of `draftfleet models list`, or a checkpoint folder")
    served_name: str | None = Field(
        None, description="what the rows of an OpenAI batch may call this model; default: path, or its last part"
    )
    dtype: Literal["bfloat16", "float32", "float64"] = Field("bfloat16", description="float32/64 to prove identity")
    kv_cache_dtype: KVDtype = Field(
        "auto", description="of keys and values; auto is dtype. Narrower takes less memory, and rounds"
    )
    max_model_len: int | None = Field(None, ge=16, description="prompt + output tokens; default: the model's own limit")
    chat_template: str | None = Field(None, description="path of a Jinja file that replaces the model's chat template")

    @property
    def known_as(self) -> str:
        """The name that a row may ask for."""
        return self.served_name or self.path


class Draft(Section):
    """What proposes tokens for the target to verify."""

    drafter: Drafter = Field(
        "ngram", description="ngram is prompt lookup: needs no weights; eagle3 needs path, model needs model"
    )
    path: str | None = Field(
        None,
        description="folder of an EAGLE-3 head: config.json and its weights; a relative path starts at the job file's "
        "folder, in --set at the working directory",
    )
    model: str | None = Field(
        None, description="a small model with the same tokenizer: a name of `draftfleet models list`, or a folder"
    )
    capture_layers: tuple[int, int, int] | None = Field(
        None, description="layers of the target whose input the head reads; default: by the head's config.json"
    )
    policy: DraftPolicy = DraftPolicy()
    measure_share: float = Field(
        0.02, ge=0.0, le=0.5, description="share of rounds decoded without drafts, to measure what drafting saves"
    )
    recheck_fraction: float = Field(
        0.0, ge=0.0, le=1.0, description="share of samples generated again without drafts, twice, to compare the texts"
    )
    policy_store: str | None = Field(
        None,
        description="folder or s3:// prefix where runs leave what they learned of drafting, and find what earlier ones "
        "did; default: _policy below sink.path",
    )
    ngram_max: int = Field(3, ge=1, le=16, description="longest suffix looked up in the text so far")
    ngram_min: int = Field(2, ge=1, le=16, description="shortest suffix looked up")

    @model_validator(mode="after")
    def _ordered(self) -> Draft:
        if self.ngram_min > self.ngram_max:
            raise ValueError(f"ngram_min {self.ngram_min} is above ngram_max {self.ngram_max}")
        return self

    @model_validator(mode="after")
    def _has_weights(self) -> Draft:
        for drafter in (self.drafter, *self.policy.candidates(self.drafter)):
            if lacks := self.lacks_for(drafter):
                raise ValueError(lacks)
        return self

    def lacks_for(self, drafter: Drafter | None) -> str | None:
        """What a drafter needs and is not there."""
        if drafter == "eagle3" and self.path is None:
            return "drafter eagle3 needs draft.path, the folder of a head for this model"
        if drafter == "model" and self.model is None:
            return "drafter model needs draft.model, a small model with the tokenizer of this one"
        return None


class Engine(Section):
    """The engine that runs the target."""

    kind: Literal["torch"] = Field("torch", description="the embedded engine, on CPU and CUDA")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="cuda if there is one")
    max_num_seqs: int = Field(16, ge=1, le=1024, description="sequences decoded together in one engine")
    kv_cache_tokens: int | None = Field(None, ge=64, description="KV slots in tokens; default: by free memory")
    max_batched_tokens: int = Field(512, ge=16, description="tokens of one forward pass, drafts and prefill included")
    prefill_chunk_tokens: int = Field(512, ge=16, description="prompt tokens prefilled per round at most")
    threads: int | None = Field(None, ge=1, description="torch threads per engine; default 1 on CPU")
    trace_rounds: bool = Field(
        False, description="write every round, with each sequence's K and acceptance, for `draftfleet simulate`"
    )
    stall_timeout_s: float = Field(
        300.0,
        gt=0,
        description="an engine that has work and runs no round for so long is replaced; to load it has ten times that",
    )


class Cluster(Section):
    """Where the engines run."""

    address: str = Field("local", description="local starts Ray here; auto or ray://host:port joins a cluster")
    workers: int | None = Field(None, ge=1, description="engine actors; default: one per core or per GPU")
    shards_in_flight: int = Field(3, ge=1, le=64, description="shards an engine works on at once, so it never drains")
    num_cpus: float | None = Field(None, gt=0, description="CPUs reserved per engine; default 1")
    num_gpus: float | None = Field(None, ge=0, description="GPUs reserved per engine; default 1 on cuda, else 0")


class Sink(Section):
    """Where the output goes: the run's folder is `<path>/<workload>-<run key>`."""

    path: str = Field("output", description="folder, local (relative to the working directory) or s3://")
    columns: tuple[str, ...] | None = Field(None, description="output columns to keep; default all but token_ids")
    token_ids: bool = Field(False, description="also write the output's token ids")
    compression: Literal["zstd", "snappy", "none"] = Field("zstd", description="Parquet codec")


class Storage(Section):
    """How s3:// is reached; the same on the driver and on every worker. Credentials never stand here: they come from
    the environment, the profile or the instance role, and are refreshed by boto3."""

    endpoint_url: str | None = Field(None, description="default: AWS; or AWS_ENDPOINT_URL")
    region: str | None = Field(None, description="default: boto3's own order")
    profile: str | None = Field(None, description="a named profile of the AWS config files")
    addressing_style: Literal["auto", "path", "virtual"] = Field("auto", description="path for most self-hosted stores")
    kms_key_id: str | None = Field(None, description="SSE-KMS key for everything written")
    max_attempts: int = Field(8, ge=1, le=50, description="tries per request, with backoff")
    connect_timeout_s: float = Field(10.0, gt=0, description="to open a connection")
    read_timeout_s: float = Field(60.0, gt=0, description="between two bytes of an answer")


class Shard(Section):
    """The unit of work, of commit and of loss: what is in flight when an engine dies is done again."""

    target_seconds: float = Field(60.0, gt=0, description="engine time of one shard, about")
    tokens_per_second: float | None = Field(
        None, gt=0, description="output tokens/s of one engine, to size shards; default 150 on CPU, 2000 on a GPU"
    )
    max_rows: int = Field(2000, ge=1, description="rows of one shard at most")


class Limits(Section):
    """When a run stops by itself."""

    max_error_rate: float = Field(0.01, ge=0.0, le=1.0, description="share of samples that may fail")
    max_engine_deaths: int = Field(50, ge=0, description="engines that may die under one driver before it gives up")


class Job(Section):
    """One YAML file: the whole of what is asked for."""

    workload: Name = Field(description="the name that the cost is reported under")
    team: str | None = Field(None, description="who owns the cost")
    cost_center: str | None = Field(None, description="what is charged")
    labels: dict[str, str] = Field(default_factory=dict, description="free labels, carried to the report")
    source: Source
    tasks: dict[TaskName, Task] = Field(default_factory=dict, description="label -> task; `default` always exists")
    model: Model = Model()
    draft: Draft = Draft()
    engine: Engine = Engine()
    cluster: Cluster = Cluster()
    sink: Sink = Sink()
    storage: Storage = Storage()
    shard: Shard = Shard()
    limits: Limits = Limits()
    seed: int = Field(0, ge=0, lt=2**63, description="noise of every row that brings none")

    @model_validator(mode="after")
    def _has_drafters(self) -> Job:
        for name, task in self.tasks.items():
            for drafter in task.draft.candidates(self.draft.drafter) if task.draft else ():
                if lacks := self.draft.lacks_for(drafter):
                    raise ValueError(f"tasks.{name}.draft: {lacks}")
        return self

    def limited(self, limit: int | None) -> Job:
        """With at most so many rows of its source; as it is if None."""
        if limit is None:
            return self
        fewer = min(limit, self.source.limit or limit)
        return self.model_copy(update={"source": self.source.model_copy(update={"limit": fewer})})

    def task(self, name: str) -> Task | None:
        """The task of a label; `default` exists even if the file does not spell it out."""
        return self.tasks.get(name, Task() if name == "default" else None)

    def draft_policy(self, task: Task) -> DraftPolicy:
        """The task's own draft policy, or the job's, with the drafter filled in."""
        policy = task.draft or self.draft.policy
        if policy.drafters is not None:
            return policy
        return policy.model_copy(update={"drafter": policy.drafter or self.draft.drafter})
