class NodeAffinitySchedulingStrategy:
    def __init__(self, node_id, soft):
        assert not soft
