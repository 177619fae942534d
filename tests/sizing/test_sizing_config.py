"""Finding and reading a configuration, and the errors that name the key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_kvoffload.errors import SizingError
from pytest_kvoffload.sizing import locate_config, model_kv, read_config
from pytest_kvoffload.sizing.config_file import MAX_CONFIG_BYTES, cached_models, hub_cache

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}
DEEPSEEK: dict[str, Any] = {
    **LLAMA,
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
}


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Build a hub cache that holds one model at two revisions."""
    repo = tmp_path / "hub" / "models--meta-llama--Llama-3.1-8B"
    for commit, layers in (("aaa", 32), ("bbb", 16)):
        folder = repo / "snapshots" / commit
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps({**LLAMA, "num_hidden_layers": layers}))
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("aaa")
    (repo / "refs" / "small").write_text("bbb")
    return tmp_path / "hub"


def test_a_file_a_folder_and_a_cached_name(cache: Path, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(LLAMA))
    env = {"HF_HUB_CACHE": str(cache)}
    assert locate_config(str(file)) == file
    assert locate_config(str(tmp_path)) == file
    main = locate_config("meta-llama/Llama-3.1-8B", env=env)
    assert read_config(main)["num_hidden_layers"] == 32
    other = locate_config("meta-llama/Llama-3.1-8B", revision="small", env=env)
    assert read_config(other)["num_hidden_layers"] == 16
    assert cached_models(cache) == ("meta-llama/Llama-3.1-8B",)


def test_cache_folder_follows_the_environment() -> None:
    assert hub_cache({"HF_HOME": "/a"}) == Path("/a/hub")
    assert hub_cache({"HF_HOME": "/a", "HF_HUB_CACHE": "/b"}) == Path("/b")
    assert hub_cache({"XDG_CACHE_HOME": "/c"}) == Path("/c/huggingface/hub")


def test_a_missing_name_says_where_it_looked_and_what_is_close(cache: Path) -> None:
    with pytest.raises(SizingError) as caught:
        locate_config("meta-llama/Llama-3-8B", env={"HF_HUB_CACHE": str(cache)})
    said = str(caught.value)
    assert str(cache) in said
    assert "did you mean 'meta-llama/Llama-3.1-8B'?" in said
    assert "Nothing is downloaded" in said


def test_a_missing_revision_lists_those_there_are(cache: Path) -> None:
    with pytest.raises(SizingError, match=r"revision 'nope' \(have: aaa, bbb\)"):
        locate_config("meta-llama/Llama-3.1-8B", revision="nope", env={"HF_HUB_CACHE": str(cache)})


def test_folders_without_a_configuration(tmp_path: Path) -> None:
    with pytest.raises(SizingError, match=r"is a folder without config\.json"):
        locate_config(str(tmp_path))
    (tmp_path / "params.json").write_text("{}")
    with pytest.raises(SizingError, match=r"params\.json \(Mistral's own format\)"):
        locate_config(str(tmp_path))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{\n  // layers\n  "num_hidden_layers": 2\n}', ":2:3: not JSON: it has comments, which JSON does not allow"),
        ('{"a": 1, // two\n "b": 2}', "it has comments"),
        ("layers: 3", ":1:1: not JSON: Expecting value"),
        ("", "not JSON"),
        ("[1, 2]", "expected a JSON object with the model's keys, got a list"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_files_that_are_no_configuration(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(SizingError) as caught:
        read_config(file)
    assert words in str(caught.value)
    assert str(file) in str(caught.value)


def test_binary_and_oversized_files(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(b"\xff\xfe\x00" * 10)
    with pytest.raises(SizingError, match="not a text file"):
        read_config(file)
    with file.open("wb") as stream:
        stream.truncate(MAX_CONFIG_BYTES + 1)
    with pytest.raises(SizingError, match="is no model configuration"):
        read_config(file)


def test_a_seven_megabyte_configuration_is_read(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    ignored = [f"model.layers.{i}.mlp.experts.{j}" for i in range(600) for j in range(400)]
    file.write_text(json.dumps({**LLAMA, "quantization_config": {"modules_to_not_convert": ignored}}))
    assert file.stat().st_size > 7_000_000
    assert model_kv(read_config(file)).kv_bytes_per_token == 131072


@pytest.mark.parametrize("key", ["num_hidden_layers", "num_attention_heads", "hidden_size"])
def test_a_missing_key_is_named(key: str) -> None:
    with pytest.raises(SizingError, match=rf"config\.json: {key}: missing; sizing a LlamaForCausalLM needs it"):
        model_kv({name: value for name, value in LLAMA.items() if name != key})


@pytest.mark.parametrize("key", ["qk_rope_head_dim", "num_hidden_layers"])
def test_a_missing_key_of_latent_attention_is_named(key: str) -> None:
    with pytest.raises(SizingError, match=f"{key}: missing"):
        model_kv({name: value for name, value in DEEPSEEK.items() if name != key})


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("num_hidden_layers", -1, "got -1; expected 1 or more"),
        ("num_hidden_layers", 0, "got 0; expected 1 or more"),
        ("num_hidden_layers", "32", "got '32'; expected a whole number"),
        ("num_hidden_layers", 32.5, "got 32.5; expected a whole number"),
        ("num_hidden_layers", True, "got True; expected a whole number"),
        ("num_hidden_layers", 10**9, "expected at most"),
        ("num_key_value_heads", -8, "got -8; expected 1 or more"),
        ("head_dim", -128, "got -128; expected 0 or more"),
        ("sliding_window", -1, "got -1; expected 0 or more"),
        ("layer_types", "full", "expected a list of strings"),
        ("layer_types", ["full_attention"], "1 entries for num_hidden_layers 32"),
        ("torch_dtype", "float8", "expected bfloat16, float16 or float32"),
        ("torch_dtype", 16, "expected a name such as bfloat16"),
        ("architectures", "LlamaForCausalLM", "expected a list of class names"),
    ],
)
def test_values_that_make_no_sense_name_the_key(key: str, value: object, words: str) -> None:
    with pytest.raises(SizingError) as caught:
        model_kv({**LLAMA, key: value})
    assert key in str(caught.value)
    assert words in str(caught.value)


def test_a_nested_key_is_named_with_its_place() -> None:
    nested = {
        "architectures": ["LlavaForConditionalGeneration"],
        "model_type": "llava",
        "text_config": {"model_type": "llama", "num_hidden_layers": -2},
    }
    with pytest.raises(SizingError, match=r"text_config\.num_hidden_layers: got -2"):
        model_kv(nested)


def test_an_unknown_architecture_is_never_guessed() -> None:
    strange = {**LLAMA, "architectures": ["LlamaXForCausalLM"]}
    with pytest.raises(SizingError) as caught:
        model_kv(strange)
    said = str(caught.value)
    assert "architectures: LlamaXForCausalLM is unknown (did you mean 'LlamaForCausalLM'?)" in said
    assert "not guessed" in said
    kv = model_kv(strange, assume_standard=True)
    assert kv.kv_bytes_per_token == 131072
    assert "assumed ordinary attention" in kv.notes[0]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("BambaForCausalLM", "vLLM removed BambaForCausalLM after 0.23.0"),
        ("BartForConditionalGeneration", "only through the plugin https://github.com/vllm-project/bart-plugin"),
        ("BertModel", "is an encoder: it keeps no KV cache"),
    ],
)
def test_architectures_that_vllm_does_not_serve_with_a_cache(name: str, words: str) -> None:
    with pytest.raises(SizingError) as caught:
        model_kv({**LLAMA, "architectures": [name], "model_type": "x"})
    assert words in str(caught.value)


def test_no_architecture_and_no_model_type() -> None:
    with pytest.raises(SizingError, match="architectures: missing, and model_type '' is unknown too"):
        model_kv({"hidden_size": 8})
