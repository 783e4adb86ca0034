"""Base class and column types shared by all models."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from sqlalchemy import ForeignKey, MetaData, String, Text
from sqlalchemy.orm import DeclarativeBase, mapped_column

from sandyard.platform.db.types import UtcTime

NAMING = {  # constraints have names, so that migrations can refer to them
    "ix": "ix_%(column_0_N_label)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(DeclarativeBase):
    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map = {datetime: UtcTime()}  # noqa: RUF012 - SQLAlchemy reads it from the class


Id = Annotated[str, mapped_column(String(40), primary_key=True)]
Ref = Annotated[str, mapped_column(String(40), index=True)]
Name = Annotated[str, mapped_column(String(200))]
ShortText = Annotated[str, mapped_column(String(40))]
LongText = Annotated[str, mapped_column(Text)]


def belongs_to(target: str) -> ForeignKey:
    """Return a foreign key that deletes the row together with the referenced one."""
    return ForeignKey(target, ondelete="CASCADE")


def may_refer_to(target: str) -> ForeignKey:
    """Return a foreign key that is set to NULL when the referenced row is deleted."""
    return ForeignKey(target, ondelete="SET NULL")
