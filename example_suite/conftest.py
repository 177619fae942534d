"""Nothing is needed here: the fixtures come with the plugin. Override a link of the chain to change what runs.

For example, to take the seed of the workload from the environment::

    @pytest.fixture
    def kvoffload_workload(kvoffload_workload):
        return dataclasses.replace(kvoffload_workload, seed=int(os.environ["SEED"]))
"""
