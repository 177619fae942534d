"""Facts about vLLM, LMCache, production-stack and SGLang as data, each with a version range and a source."""
