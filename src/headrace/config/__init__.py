"""Configuration: one YAML file, the environment and flags become one frozen `Config`.

The environment is handed in as a mapping; only the command line reads the real one. Every key is in
`examples/headrace.yaml`.
"""

from headrace.config.config import Config, is_loopback
from headrace.config.documents import example_yaml, schema_json
from headrace.config.environment import Finding, address_of, discover_environment, echo_instance
from headrace.config.instances import InstanceSection, ModelEntry
from headrace.config.reading import load

__all__ = [
    "Config",
    "Finding",
    "InstanceSection",
    "ModelEntry",
    "address_of",
    "discover_environment",
    "echo_instance",
    "example_yaml",
    "is_loopback",
    "load",
    "schema_json",
]
