import type { OsUser } from '../processes/os-user.ts';

/**
 * What several stacks can start from, so that each need not make its own. Each function returns the path of
 * something that the start copies.
 */
export interface Prepared {
  /** The agent's bundle. */
  agent: () => Promise<string>;
  /** The Worker's bundle. */
  worker: () => Promise<string>;
  /** The folder of the console's static files. */
  console: () => Promise<string>;
  /** A data folder fresh from `initdb`. @param binaries the folder of `initdb`. @param user its owner */
  cluster: (binaries: string, user: OsUser) => Promise<string>;
}
