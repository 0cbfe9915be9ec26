import { branchOfLogin } from '../../shared/branch/login.ts';
import type { Session } from '../postgres/connect.ts';
import { admitLogins, type MembersVersion } from './networks.ts';
import type { Block, BranchAccess } from './rule-files.ts';

interface WantedAccess {
  branches: readonly BranchAccess[];
  blocks: readonly Block[];
}

/** Makes the logins members of the networks that may use them, and compares only branches whose access has changed. */
export class NetworkMembers {
  /** What the members follow, by branch; null: they may differ anywhere. */
  #admitted: (MembersVersion & { access: Map<string, string> }) | null = null;
  #running: Promise<unknown> = Promise.resolve();

  /**
   * Runs one transaction at a time, which reads the access when it begins: otherwise one that began before a block could
   * admit the blocked client again.
   */
  admit<T extends { projects: readonly string[] }>(
    session: Session,
    access: () => WantedAccess,
    prepare: () => Promise<T>,
  ): Promise<T> {
    const running = this.#running
      .catch(() => {})
      .then(async () => {
        const { branches, blocks } = access();
        const wanted = admissionsOf(branches, blocks);
        const former = this.#admitted;
        this.#admitted = null;
        const known = former && { version: former.version, branches: differing(former.access, wanted) };
        const admitted = await admitLogins(session, blocks, known, prepare);
        this.#admitted = { version: admitted.version, access: wanted };
        return admitted;
      });
    this.#running = running;
    return running;
  }
}

/** By branch: from where its logins are admitted, and what is blocked. */
function admissionsOf(branches: readonly BranchAccess[], blocks: readonly Block[]): Map<string, string> {
  const blocked = Map.groupBy(blocks, ({ branch_id }) => branch_id);
  return new Map(
    branches.flatMap(({ verifiers, cidrs }) => {
      const [login] = Object.keys(verifiers);
      if (login === undefined) return [];
      const id = branchOfLogin(login);
      const addresses = (blocked.get(id) ?? []).map(({ address }) => address ?? '*');
      return [[id, [Object.keys(verifiers), cidrs, addresses.sort()].join(' ')] as const];
    }),
  );
}

const differing = (one: Map<string, string>, other: Map<string, string>): string[] =>
  [...new Set([...one.keys(), ...other.keys()])].filter((id) => one.get(id) !== other.get(id));
