import { DatabaseSync } from 'node:sqlite';
import type { Adapter, AdapterPayload } from 'oidc-provider';

const TABLE = `CREATE TABLE IF NOT EXISTS entry (
  model TEXT NOT NULL,
  id TEXT NOT NULL,
  payload TEXT NOT NULL,
  grant_id TEXT GENERATED ALWAYS AS (payload ->> 'grantId'),
  uid TEXT GENERATED ALWAYS AS (payload ->> 'uid'),
  expires_at INTEGER,
  PRIMARY KEY (model, id)
) STRICT`;

const seconds = () => Math.floor(Date.now() / 1000);

/** Stores the provider's sessions, codes and refresh tokens in a file, so that they survive a restart. */
export function fileStorage(file: string): (model: string) => Adapter {
  const database = new DatabaseSync(file);
  database.exec(TABLE);
  database.prepare('DELETE FROM entry WHERE expires_at < ?').run(seconds());
  const upsert = database.prepare(
    'INSERT OR REPLACE INTO entry (model, id, payload, expires_at) VALUES (?, ?, ?, ?)',
  );
  const findById = database.prepare('SELECT payload FROM entry WHERE model = ? AND id = ?');
  const findByUid = database.prepare('SELECT payload FROM entry WHERE model = ? AND uid = ?');
  const consume = database.prepare(
    "UPDATE entry SET payload = json_set(payload, '$.consumed', ?) WHERE model = ? AND id = ?",
  );
  const destroy = database.prepare('DELETE FROM entry WHERE model = ? AND id = ?');
  const revoke = database.prepare('DELETE FROM entry WHERE model = ? AND grant_id = ?');

  const read = (row: Record<string, unknown> | undefined): AdapterPayload | undefined =>
    row && JSON.parse(String(row.payload));

  return (model) => ({
    async upsert(id, payload, expiresIn) {
      upsert.run(model, id, JSON.stringify(payload), expiresIn ? seconds() + expiresIn : null);
    },
    find: async (id) => read(findById.get(model, id)),
    findByUid: async (uid) => read(findByUid.get(model, uid)),
    // Only used by the device flow, which is disabled.
    findByUserCode: async () => undefined,
    async consume(id) {
      consume.run(seconds(), model, id);
    },
    async destroy(id) {
      destroy.run(model, id);
    },
    async revokeByGrantId(grantId) {
      revoke.run(model, grantId);
    },
  });
}
