"""The tables, as a list of steps. A step, once released, is never changed: append a new one."""

from __future__ import annotations

STEPS: tuple[str, ...] = (
    """
    CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

    CREATE TABLE sandboxes (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        -- fixed at creation
        template_id TEXT NOT NULL,
        created_at REAL NOT NULL,
        spec TEXT NOT NULL,           -- JSON: alias, name, layers, limits, metadata, env, defaults, tokens, …
        -- changed by verbs
        state TEXT NOT NULL CHECK (state IN ('running', 'paused')),
        handle TEXT NOT NULL,         -- JSON, the driver's
        network TEXT NOT NULL,        -- JSON
        started_at REAL NOT NULL,
        ends_at REAL NOT NULL,
        timeout_s REAL NOT NULL,
        on_timeout TEXT NOT NULL,
        pause_kind TEXT,
        paused_at REAL,
        memory_lost TEXT,
        intent TEXT
    );

    CREATE TABLE snapshots (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        name TEXT,
        tag TEXT NOT NULL,
        created_at REAL NOT NULL,
        deleted INTEGER NOT NULL DEFAULT 0,   -- gone for clients; the files go when nothing stands on them
        spec TEXT NOT NULL
    );
    CREATE UNIQUE INDEX snapshots_by_name ON snapshots (name, tag) WHERE name IS NOT NULL AND deleted = 0;

    CREATE TABLE idempotency (
        owner TEXT NOT NULL,
        key TEXT NOT NULL,
        digest BLOB NOT NULL,
        sandbox_id TEXT NOT NULL,
        created_at REAL NOT NULL,
        PRIMARY KEY (owner, key)
    ) WITHOUT ROWID;

    CREATE TABLE logs (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        sandbox_id TEXT NOT NULL,
        at REAL NOT NULL,
        level INTEGER NOT NULL,
        message TEXT NOT NULL,
        fields TEXT NOT NULL
    );
    CREATE INDEX logs_by_sandbox ON logs (sandbox_id, id);

    CREATE TABLE api_keys (
        id TEXT PRIMARY KEY,
        label TEXT NOT NULL,
        hash BLOB NOT NULL UNIQUE,
        hint TEXT NOT NULL,
        created_at REAL NOT NULL
    ) WITHOUT ROWID;
    """,
    """
    -- sandboxes whose logs are still kept, so that old ones are found without looking at every entry
    CREATE TABLE ended (sandbox_id TEXT PRIMARY KEY, at REAL NOT NULL) WITHOUT ROWID;
    CREATE INDEX ended_by_time ON ended (at);
    INSERT INTO ended SELECT sandbox_id, max(at) FROM logs WHERE sandbox_id NOT IN (SELECT id FROM sandboxes)
        GROUP BY sandbox_id;
    CREATE INDEX idempotency_by_time ON idempotency (created_at);
    """,
    """
    CREATE TABLE built_templates (
        id TEXT PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        public INTEGER NOT NULL,
        created_at REAL NOT NULL,
        updated_at REAL NOT NULL
    ) WITHOUT ROWID;

    CREATE TABLE builds (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        template_id TEXT NOT NULL,
        status TEXT NOT NULL CHECK (status IN ('waiting', 'building', 'ready', 'error')),
        created_at REAL NOT NULL,
        updated_at REAL NOT NULL,
        finished_at REAL,
        spec TEXT NOT NULL            -- JSON: size, tags, reason, what was made
    );

    CREATE TABLE template_tags (      -- every assignment; the latest of a tag counts
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        template_id TEXT NOT NULL,
        tag TEXT NOT NULL,
        build_id TEXT NOT NULL,
        at REAL NOT NULL
    );

    CREATE TABLE build_logs (
        build_id TEXT NOT NULL,
        number INTEGER NOT NULL,
        at REAL NOT NULL,
        level TEXT NOT NULL,
        message TEXT NOT NULL,
        step TEXT,
        PRIMARY KEY (build_id, number)
    ) WITHOUT ROWID;

    CREATE TABLE build_layers (       -- cached: what the steps so far have made, under the hash of all of them
        key TEXT PRIMARY KEY,
        spec TEXT NOT NULL,           -- JSON: layers, snapshots, state
        used_at REAL NOT NULL
    ) WITHOUT ROWID;
    """,
    """
    CREATE TABLE secrets (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        name TEXT NOT NULL UNIQUE,    -- in lower case
        version INTEGER NOT NULL,
        metadata TEXT NOT NULL,       -- JSON
        created_at REAL NOT NULL,
        updated_at REAL NOT NULL,
        sealed BLOB NOT NULL          -- the current value, encrypted
    );
    """,
    """
    CREATE TABLE volumes (
        id TEXT PRIMARY KEY,
        name TEXT NOT NULL,
        token TEXT NOT NULL,
        size_mb INTEGER NOT NULL,
        created_at REAL NOT NULL,
        state TEXT NOT NULL CHECK (state IN ('making', 'live', 'doomed'))   -- the files of what is not live go
    ) WITHOUT ROWID;
    CREATE UNIQUE INDEX volumes_by_name ON volumes (name) WHERE state = 'live';
    """,
    """
    CREATE TABLE layer_digests (      -- of layers that were packed for a layer store, or fetched from one
        layer TEXT PRIMARY KEY,
        digest TEXT NOT NULL,
        spec TEXT NOT NULL            -- JSON
    ) WITHOUT ROWID;
    CREATE INDEX layer_digests_by_digest ON layer_digests (digest);

    CREATE TABLE publications (
        store TEXT NOT NULL,          -- identity of the layer store
        snapshot_id TEXT NOT NULL,
        state TEXT NOT NULL CHECK (state IN ('publishing', 'published', 'pulled', 'missing')),
        used_at REAL NOT NULL,
        PRIMARY KEY (store, snapshot_id)
    ) WITHOUT ROWID;
    """,
    """
    CREATE TABLE hosts (
        id TEXT PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        address TEXT NOT NULL,
        port INTEGER NOT NULL,
        labels TEXT NOT NULL,             -- JSON
        draining INTEGER NOT NULL,        -- 1: gets no new sandboxes; 2: and those that it has are moved away
        key_fingerprint TEXT NOT NULL UNIQUE,
        serial TEXT NOT NULL,             -- of its newest certificate
        expires_at REAL NOT NULL,
        joined_at REAL NOT NULL
    ) WITHOUT ROWID;

    CREATE TABLE join_tokens (
        id TEXT PRIMARY KEY,
        hash BLOB NOT NULL,
        expires_at REAL NOT NULL,
        used_by TEXT                      -- the key fingerprint of the host that joined with it
    ) WITHOUT ROWID;
    """,
    """
    CREATE TABLE origins (            -- of layers and volumes that are not, or not only, on the engine's machine
        name TEXT PRIMARY KEY,        -- of a layer, or `volume:` and its id
        host TEXT,                    -- that made it; NULL: the engine's machine
        content TEXT                  -- digest of the layer's files, once it was transferred
    ) WITHOUT ROWID;
    """,
    """
    CREATE TABLE checkpoints (        -- the newest files of a sandbox of another host that are on the engine's machine
        sandbox_id TEXT PRIMARY KEY,
        snapshot_id TEXT NOT NULL,
        taken_at REAL NOT NULL
    ) WITHOUT ROWID;
    """,
    """
    ALTER TABLE hosts ADD COLUMN source TEXT NOT NULL DEFAULT 'static';        -- that lists the machine
    ALTER TABLE join_tokens ADD COLUMN source TEXT NOT NULL DEFAULT 'static';  -- that the token was made for
    """,
)
