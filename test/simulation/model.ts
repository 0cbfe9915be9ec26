import { randomUUID } from 'node:crypto';
import type { Api, Credentials } from '../support/api.ts';

/** `unknown`: its client got no definite response, so it may exist or not. */
export type Existence = 'there' | 'gone' | 'unknown';

/**
 * The possible states of a value according to the responses its writers got. Null: it is absent.
 * A write without a response may still be executed, even after later ones.
 */
export class Promised<Value> {
  #settled: Set<Value>;
  readonly #floating = new Set<Value>();
  readonly #inFlight: Value[] = [];
  /** Every requested value, in order. */
  readonly #asked: Value[] = [];

  constructor(...settled: Value[]) {
    this.#settled = new Set(settled);
  }

  get possible(): Set<Value> {
    return new Set([...this.#settled, ...this.#floating]);
  }

  get everAsked(): readonly Value[] {
    return this.#asked;
  }

  /** Adds the values that an earlier write may still give to this one, which has replaced `former`. */
  outlive(former: Promised<Value>): this {
    for (const value of former.#floating) this.#floating.add(value);
    return this;
  }

  /** Must be called before the request is sent. */
  ask(value: Value): void {
    this.#asked.push(value);
    this.#inFlight.push(value);
  }

  /** Records the outcome of a request. */
  learn(value: Value, { done, doubtful }: { done: boolean; doubtful: boolean }): void {
    this.#inFlight.splice(this.#inFlight.indexOf(value), 1);
    if (done) this.#settled = new Set([value]);
    if (doubtful) this.#floating.add(value);
  }

  /** @returns a function that ends the copy and returns the possible values of a copy made in between */
  beginCopy(): () => Promised<Value> {
    const before = [...this.possible, ...this.#inFlight];
    const asked = this.#asked.length;
    return () => new Promised(...before, ...this.#asked.slice(asked));
  }
}

export type Title = string | null;

export class ModelBranch {
  existence: Existence = 'unknown';
  id = '';
  /** Null: unknown or possibly outdated. */
  credentials: Credentials | null = null;
  /** URLs whose passwords have been rotated. */
  readonly retired: string[] = [];
  lifespan: Promised<string>;
  rows: Map<number, Promised<Title>>;
  rotations: Tally = { least: 0, most: 0 };
  lifespanChanges: Tally = { least: 0, most: 0 };
  views: Tally = { least: 0, most: 0 };
  /** The branch that it was cloned from, while that exists. */
  parent: ModelBranch | null = null;
  isProtected = new Promised(false);
  /** The host needed the room of its kept database. */
  wasPurged = false;
  /** Its project has moved, and its kept database stayed. */
  isForgotten = false;
  /** Unix milliseconds before which its lease cannot have ended; null: it has none. */
  leasedUntil: number | null = null;

  constructor(lifespan: string, rows: Map<number, Promised<Title>> = new Map()) {
    this.lifespan = new Promised(lifespan);
    this.rows = rows;
  }

  row(row: number): Promised<Title> {
    const known = this.rows.get(row) ?? new Promised<Title>(null);
    this.rows.set(row, known);
    return known;
  }

  /** @returns a function that ends the clone and returns the rows of a clone made in between */
  beginClone(): () => Map<number, Promised<Title>> {
    const begun = new Map([...this.rows].map(([row, title]) => [row, title.beginCopy()] as const));
    return () =>
      new Map([...this.rows].map(([row, title]) => [row, begun.get(row)?.() ?? copyOfNew(title)] as const));
  }
}

/** The rows of a branch that now has the content of a source, and before had `former`. */
export const contentOf = (
  source: ReadonlyMap<number, Promised<Title>>,
  former: ReadonlyMap<number, Promised<Title>>,
): Map<number, Promised<Title>> =>
  new Map(
    [...new Set([...source.keys(), ...former.keys()])].map((row) => {
      const given = source.get(row);
      const past = former.get(row);
      const title = new Promised<Title>(...(given?.possible ?? [null]));
      return [row, past ? title.outlive(past) : title] as const;
    }),
  );

/** The row was inserted while the clone was made. */
const copyOfNew = (title: Promised<Title>) => new Promised<Title>(null, ...title.everAsked);

export interface ModelRule {
  id: string;
  cidr: string;
  existence: Existence;
}

export interface ModelSnapshot {
  id: string;
  existence: Existence;
  rows: Map<number, Promised<Title>>;
}

export class ModelProject {
  existence: Existence = 'unknown';
  id = '';
  hasTable = false;
  readonly branches = new Map<string, ModelBranch>();
  readonly rules = new Map<string, ModelRule>();
  readonly snapshots = new Map<string, ModelSnapshot>();
  /** The names of the branches of each batch. */
  readonly batches: string[][] = [];
  /** To another host. */
  readonly moves: Tally = { least: 0, most: 0 };
}

/** The permitted number of audit events. */
export interface Tally {
  least: number;
  most: number;
}

/** A user, and everything that the service promised it. */
export class ModelActor {
  readonly name: string;
  readonly email = `${randomUUID()}@example.com`;
  /** Keeps the names of tenants unique per run. */
  readonly #run = randomUUID();
  tenant: string;
  /** Whether it was in another tenant before. */
  hasMoved = false;
  api: Api;
  readonly projects = new Map<string, ModelProject>();

  constructor(name: string, tenant: string, api: Api) {
    this.name = name;
    this.tenant = this.tenantNamed(tenant);
    this.api = api;
  }

  tenantNamed(name: string): string {
    return `${name}-${this.#run}`;
  }

  project(name: string): ModelProject | undefined {
    return this.projects.get(name);
  }
}
