"""The configuration: one model, and the only reader of files and environment.

A value comes from one of four places, a later one wins:

    default  <  YAML file  <  environment TBMQ_SECTION__KEY  <  --set section.key=value

Read `model` for the keys, `values` for their kinds, `sources` for the three readers, `loading` for how they meet.
The rest of the package needs only the names below.
"""

from tbmq.config.loading import ConfigError, build, load, read_sources
from tbmq.config.model import Config, keys, unit
from tbmq.config.sources import Problem
from tbmq.config.values import Bind

__all__ = ["Bind", "Config", "ConfigError", "Problem", "build", "keys", "load", "read_sources", "unit"]
