"""Objects behind one URL."""

from octad.storage.objects import ObjectMeta, ObjectStore

__all__ = ["ObjectMeta", "ObjectStore"]
