import { HostError } from '../process/host-error.ts';

interface Limits {
  total: number;
  /** The part of the total that is only for projects with fewer than `reservedBelow`. */
  reserved: number;
  reservedBelow: number;
  ofProject: number;
  ofBranch: number;
}

/**
 * How many row operations run, and how many are admitted, running or waiting. A tenant's slow view or trigger
 * delays that project alone, and never uses up the link, which carries 64 calls.
 */
const RUNNING: Limits = { total: 16, reserved: 1, reservedBelow: 1, ofProject: 8, ofBranch: 4 };
const ADMITTED: Limits = { total: 32, reserved: 8, reservedBelow: 4, ofProject: 12, ofBranch: 8 };
/**
 * The same for scripts, which run for up to 30 s. `project` stands for all projects of a tenant here. With two
 * for everyone else, two tenants cannot keep the others waiting.
 */
const SCRIPTS_RUNNING: Limits = { total: 8, reserved: 2, reservedBelow: 1, ofProject: 3, ofBranch: 2 };
const SCRIPTS_ADMITTED: Limits = { total: 16, reserved: 6, reservedBelow: 2, ofProject: 5, ofBranch: 4 };
const WAIT_MS = 2_000;

interface Operation {
  branchId: string;
  /** Who has a limit together: a project by the database of its `main`, or a tenant. */
  project: string;
}

interface Waiter extends Operation {
  start: () => void;
}

/** Limits concurrent row operations. */
export class RowTurns {
  readonly #limits: { running: Limits; admitted: Limits };
  readonly #running: Operation[] = [];
  /** All that run or wait. */
  readonly #admitted: Operation[] = [];
  readonly #waiters: Waiter[] = [];

  constructor(limits = { running: RUNNING, admitted: ADMITTED }) {
    this.#limits = limits;
  }

  static ofScripts = () => new RowTurns({ running: SCRIPTS_RUNNING, admitted: SCRIPTS_ADMITTED });

  /**
   * Waits for a turn.
   * @param project who has a limit together
   * @returns a function that ends the turn
   * @throws HostError PROJECT_BUSY or HOST_BUSY, immediately when too many operations wait already, otherwise
   *   after the wait
   */
  async enter(branchId: string, project: string): Promise<() => void> {
    const operation = { branchId, project };
    const { running, admitted } = this.#limits;
    const full = fullFor(this.#admitted, admitted, operation);
    if (full) throw busy(full);
    this.#admitted.push(operation);
    if (fullFor(this.#running, running, operation)) await this.#wait(operation);
    else this.#running.push(operation);
    return () => this.#leave(operation);
  }

  #wait(operation: Operation): Promise<void> {
    return new Promise((resolve, reject) => {
      const timeout = setTimeout(() => {
        remove(this.#waiters, waiter);
        remove(this.#admitted, operation);
        reject(busy(fullFor(this.#running, this.#limits.running, operation) ?? 'host'));
      }, WAIT_MS);
      const start = () => {
        clearTimeout(timeout);
        remove(this.#waiters, waiter);
        this.#running.push(operation);
        resolve();
      };
      const waiter = { ...operation, start };
      this.#waiters.push(waiter);
    });
  }

  /** The free turn goes to the waiting project that has the fewest. */
  #leave(operation: Operation): void {
    remove(this.#running, operation);
    remove(this.#admitted, operation);
    const ready = this.#waiters.filter((waiter) => !fullFor(this.#running, this.#limits.running, waiter));
    ready.sort((a, b) => ofProject(this.#running, a) - ofProject(this.#running, b))[0]?.start();
  }
}

type Full = 'project' | 'host';

/**
 * What leaves no room for another such operation: the limits of its own project, or those of all; null if
 * neither.
 */
function fullFor(list: readonly Operation[], limits: Limits, operation: Operation): Full | null {
  const own = ofProject(list, operation);
  const ofBranch = list.filter(({ branchId }) => branchId === operation.branchId).length;
  if (own >= limits.ofProject || ofBranch >= limits.ofBranch) return 'project';
  return list.length >= limits.total - (own < limits.reservedBelow ? 0 : limits.reserved) ? 'host' : null;
}

const ofProject = (list: readonly Operation[], { project }: Operation) =>
  list.filter((operation) => operation.project === project).length;

const busy = (full: Full) =>
  full === 'project'
    ? new HostError('PROJECT_BUSY', 'too many row operations of this project are under way')
    : new HostError('HOST_BUSY', 'too many row operations are under way');

function remove<T>(list: T[], item: T): void {
  const index = list.indexOf(item);
  if (index !== -1) list.splice(index, 1);
}
