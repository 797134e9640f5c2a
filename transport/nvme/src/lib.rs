//! willow-nvme (being written).
