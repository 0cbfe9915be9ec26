/** A fault to be found: one place in the agent's bundle, and what is put there. */
interface Plant {
  find: string;
  put: string;
}

/**
 * Faults that are built into the agent, as esbuild has bundled it, to see that the simulator finds them. The product
 * has no switch for them.
 */
const PLANTS = {
  /** A clone that is there is not adopted: it is dropped and made again. */
  'clone-again': {
    find: 'if (!found.some(({ interrupted }) => interrupted)) return "built";',
    put: '',
  },
  /** The second call to publish finds a name that is taken. */
  'publish-once': {
    find: 'if (published?.mark?.branch_id === branch_id) return {};',
    put: '',
  },
  /** A changed row is told of and taken back. */
  'lost-write': {
    find: 'if (!row) throw await whyNothing();',
    put: `if (!row) throw await whyNothing();
    await session.query('ROLLBACK');
    await session.query('BEGIN');`,
  },
  /** Sessions outlive their right to be there. */
  'sessions-stay': {
    find: 'await endDirectSessions(session, projectId);',
    put: '',
  },
} as const satisfies Record<string, Plant>;

export type PlantName = keyof typeof PLANTS;
export const PLANT_NAMES = Object.keys(PLANTS) as PlantName[];

/** @param bundle the agent's text. @throws Error when it has no such place, or several */
export function plant(name: PlantName, bundle: string): string {
  const { find, put } = PLANTS[name];
  const parts = bundle.split(find);
  if (parts.length !== 2) throw new Error(`the agent has ${parts.length - 1} places for ${name}`);
  return parts.join(put);
}
