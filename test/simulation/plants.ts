/** A planted fault: a text in the agent's bundle and its replacement. */
interface Plant {
  find: string | RegExp;
  put: string;
}

/**
 * Faults that are built into the agent's bundle to verify that the simulator finds them. The product has no
 * switch for them.
 */
const PLANTS = {
  /** An existing clone is dropped and made again instead of being adopted. */
  'clone-again': {
    find: 'if (built && !built.interrupted) return "built";',
    put: '',
  },
  /** A repeated call to finalize fails because the name is taken. */
  'publish-once': {
    find: 'if (finalized?.mark?.branch_id === branch_id) return true;',
    put: '',
  },
  /** A changed row is reported and rolled back. */
  'lost-write': {
    find: 'return row ? made(row) : conflictOf(target, change);',
    put: `await target.session.query('ROLLBACK');
    await target.session.query('BEGIN');
    return row ? made(row) : conflictOf(target, change);`,
  },
  /** A standing snapshot stays in use when its branch has changed. */
  'stale-standing': {
    find: 'if (!this.#cursor.isUnchanged(known.oid, known.since)) return null;',
    put: '',
  },
  /** Sessions stay open after their access is revoked. */
  'sessions-stay': {
    // The bundler may number the parameter.
    find: /await endDirectSessions\(session\d*, projectId\);/,
    put: '',
  },
  /** The rows of `main` are gone when its project has moved. */
  'moved-rows-lost': {
    find: 'onProgress?.(APPLIED_AT);',
    put: `await inFollowed(host, followed, 'change', (own) =>
      own.query('do $$ begin delete from public.book; exception when undefined_table then null; end $$'));`,
  },
  /** The login of a move stays on the host that the project has left. */
  'mover-stays': {
    find: 'if (!await isLogin() && movers.length === 0) return { released: false };',
    put: 'return { released: true };',
  },
  /** After a loss a later second is reported than the one that survived. */
  'late-second': {
    find: 'floor(this.#replayed.at - MARGIN_MS)',
    put: 'floor(this.#replayed.at + 600_000)',
  },
} as const satisfies Record<string, Plant>;

export type PlantName = keyof typeof PLANTS;
export const PLANT_NAMES = Object.keys(PLANTS) as PlantName[];

/** @param bundle text of the agent. @throws Error unless it contains the text exactly once */
export function plant(name: PlantName, bundle: string): string {
  const { find, put } = PLANTS[name];
  const parts = bundle.split(find);
  if (parts.length !== 2) throw new Error(`the agent has ${parts.length - 1} occurrences of ${name}`);
  return parts.join(put);
}
