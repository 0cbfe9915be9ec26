import { randomUUID } from 'node:crypto';
import type { Api, Credentials } from '../support/api.ts';

/** `unknown`: its client was told nothing, so it may be there or not. */
export type Existence = 'there' | 'gone' | 'unknown';

/**
 * What a value may be, by what its writers were told. Null: it is absent.
 * A write that nobody answered may still come, even after later ones.
 */
export class Promised<Value> {
  #settled: Set<Value>;
  readonly #floating = new Set<Value>();
  readonly #onTheWay: Value[] = [];
  /** Every value that was ever asked for, in order. */
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

  /** Before the request goes out. */
  ask(value: Value): void {
    this.#asked.push(value);
    this.#onTheWay.push(value);
  }

  /** What became of a request. */
  learn(value: Value, { done, doubtful }: { done: boolean; doubtful: boolean }): void {
    this.#onTheWay.splice(this.#onTheWay.indexOf(value), 1);
    if (done) this.#settled = new Set([value]);
    if (doubtful) this.#floating.add(value);
  }

  /** What a copy holds that is made between now and the call of what this returns. */
  beginCopy(): () => Promised<Value> {
    const before = [...this.possible, ...this.#onTheWay];
    const asked = this.#asked.length;
    return () => new Promised(...before, ...this.#asked.slice(asked));
  }
}

export type Title = string | null;

export class ModelBranch {
  existence: Existence = 'unknown';
  id = '';
  /** Null: not known, or perhaps no longer right. */
  credentials: Credentials | null = null;
  /** URLs whose password has been taken back. */
  readonly retired: string[] = [];
  lifespan: Promised<string>;
  rows: Map<number, Promised<Title>>;
  rotations: Tally = { least: 0, most: 0 };
  lifespanChanges: Tally = { least: 0, most: 0 };
  views: Tally = { least: 0, most: 0 };

  constructor(lifespan: string, rows: Map<number, Promised<Title>> = new Map()) {
    this.lifespan = new Promised(lifespan);
    this.rows = rows;
  }

  row(row: number): Promised<Title> {
    const known = this.rows.get(row) ?? new Promised<Title>(null);
    this.rows.set(row, known);
    return known;
  }

  /** The rows of a clone that is made between now and the call of what this returns. */
  beginClone(): () => Map<number, Promised<Title>> {
    const begun = new Map([...this.rows].map(([row, title]) => [row, title.beginCopy()] as const));
    return () =>
      new Map([...this.rows].map(([row, title]) => [row, begun.get(row)?.() ?? copyOfNew(title)] as const));
  }
}

/** The row came while the clone was made. */
const copyOfNew = (title: Promised<Title>) => new Promised<Title>(null, ...title.everAsked);

export interface ModelRule {
  id: string;
  cidr: string;
  existence: Existence;
}

export class ModelProject {
  existence: Existence = 'unknown';
  id = '';
  hasTable = false;
  readonly branches = new Map<string, ModelBranch>();
  readonly rules = new Map<string, ModelRule>();
}

/** How often an event has to be on record, at least and at most. */
export interface Tally {
  least: number;
  most: number;
}

/** A user, and everything that was promised to it. */
export class ModelActor {
  readonly name: string;
  readonly email = `${randomUUID()}@example.com`;
  /** Tenants of different runs never meet. */
  readonly #run = randomUUID();
  tenant: string;
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
