import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type IncomingMessage } from 'node:http';
import type { AddressInfo } from 'node:net';
import { DatabaseSync } from 'node:sqlite';

const ACCOUNT = 'a'.repeat(32);
export const TOKEN = 'token-of-the-operator';

export interface Binding {
  type: string;
  name: string;
  [field: string]: unknown;
}

/** A version of a Worker as it was uploaded. */
export interface Version {
  id: string;
  mainModule: string;
  modules: Map<string, string>;
  compatibility: { date: string; flags: string[] };
  /** With the secrets, which the API never shows. */
  bindings: Binding[];
  assetsConfig: { run_worker_first?: string[]; not_found_handling?: string; _headers?: string };
  /** Path and content of each static file. */
  assets: Map<string, Buffer>;
}

interface Script {
  versions: Version[];
  serving: string;
  migrationTag: string | null;
}

interface Metadata {
  main_module: string;
  compatibility_date?: string;
  compatibility_flags?: string[];
  bindings: Binding[];
  keep_bindings?: string[];
  migrations?: { old_tag?: string; new_tag: string };
  assets?: { jwt: string; config?: Version['assetsConfig'] };
}

interface Call {
  method: string;
  path: string;
  body: Buffer;
}

class Refusal extends Error {
  readonly status: number;
  readonly code: number;

  constructor(status: number, code: number, message: string) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** A stand-in for Cloudflare's API, as far as wrangler uses it to deploy. It keeps what it was sent. */
export class FakeCloudflare {
  readonly #server = createServer((request, response) => {
    void this.#respond(request).then(({ status, body }) => {
      response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body));
    });
  });
  readonly databases = new Map<string, { name: string; database: DatabaseSync; statements: string[] }>();
  readonly scripts = new Map<string, Script>();
  /** Worker by host name. */
  readonly domains = new Map<string, string>();
  /** When a Worker is run, by its name. */
  readonly crons = new Map<string, string[]>();
  /** Calls that changed something. */
  readonly writes: string[] = [];
  accounts = [{ id: ACCOUNT, name: 'Acme' }];
  /** What the API says to a token other than `TOKEN`. */
  rejection = { code: 1000, message: 'Invalid API Token' };
  /** Domains of the account. */
  zones = ['example.test'];
  /** Called before each call that changes something. */
  beforeWrite: (call: string) => void = () => {};
  readonly #files = new Map<string, Buffer>();
  readonly #manifests = new Map<string, Record<string, { hash: string }>>();

  async listen(): Promise<string> {
    this.#server.listen(0, '127.0.0.1');
    await once(this.#server, 'listening');
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  async close(): Promise<void> {
    this.#server.closeAllConnections();
    this.#server.close();
    for (const { database } of this.databases.values()) database.close();
    await once(this.#server, 'close');
  }

  /** The version of a Worker that serves. @throws Error without one */
  serving(name: string): Version {
    const script = this.scripts.get(name);
    const version = script?.versions.find(({ id }) => id === script.serving);
    if (!version) throw new Error(`no version of ${name} serves`);
    return version;
  }

  /** The texts of a Worker's settings and secrets by name. */
  settings(name: string): Record<string, string> {
    const { bindings } = this.serving(name);
    const texts = bindings.filter(({ type }) => type === 'plain_text' || type === 'secret_text');
    return Object.fromEntries(texts.map((binding) => [binding.name, String(binding.text)]));
  }

  /** Adds a setting as the dashboard does. */
  set(name: string, binding: Binding): void {
    const version = this.serving(name);
    this.#add(name, { ...version, bindings: [...version.bindings, binding] });
  }

  async #respond(request: IncomingMessage): Promise<{ status: number; body: object }> {
    const chunks: Buffer[] = [];
    for await (const chunk of request) chunks.push(chunk as Buffer);
    const { pathname } = new URL(request.url ?? '/', 'http://localhost');
    const call = { method: request.method ?? 'GET', path: pathname, body: Buffer.concat(chunks) };
    try {
      const bearer = request.headers.authorization?.replace(/^Bearer /, '') ?? '';
      if (bearer !== TOKEN && !this.#manifests.has(bearer))
        throw new Refusal(401, this.rejection.code, this.rejection.message);
      const result = await this.#answer(call, request.headers['content-type'] ?? '', bearer);
      const page = { page: 1, per_page: 100, count: 1, total_count: 1 };
      return { status: 200, body: { success: true, errors: [], messages: [], result, result_info: page } };
    } catch (error) {
      const { status, code, message } =
        error instanceof Refusal ? error : { status: 500, code: 0, message: `${pathname}: ${String(error)}` };
      return { status, body: { success: false, errors: [{ code, message }], messages: [], result: null } };
    }
  }

  async #answer(call: Call, contentType: string, bearer: string): Promise<unknown> {
    const { method, path, body } = call;
    const ofUser: Record<string, unknown> = {
      '/user': { id: 'user', email: 'operator@example.test' },
      '/user/tokens/verify': { id: 'token', status: 'active' },
      '/accounts': this.accounts,
      '/memberships': this.accounts.map((account) => ({ id: account.id, account })),
    };
    if (path in ofUser) return ofUser[path];
    const [, account, area, ...rest] = /^\/accounts\/([^/]+)\/([^/]+)\/(.*)$/.exec(path) ?? [];
    if (account !== ACCOUNT) throw new Refusal(404, 7003, `Could not route to ${path}`);
    const words = (rest[0] ?? '').split('/');
    if (area === 'd1') return this.#d1(call, words);
    if (words[0] === 'services') return this.#service(words[1] ?? '');
    if (words[0] === 'workers') return { subdomain: { enabled: false, previews_enabled: false } };
    if (words[0] === 'assets') return this.#storeFiles(body, contentType, bearer);
    if (words[0] === 'scripts') return this.#script(call, words.slice(1), contentType);
    throw new Refusal(404, 7000, `No route for ${method} ${path}`);
  }

  #write(call: string): void {
    this.beforeWrite(call);
    this.writes.push(call);
  }

  #d1({ method, body }: Call, [, id, action]: string[]): unknown {
    const json = () => JSON.parse(body.toString()) as { name: string; sql: string };
    if (id === undefined && method === 'GET')
      return [...this.databases].map(([uuid, { name }]) => ({ uuid, name, version: 'production' }));
    if (id === undefined) {
      const { name } = json();
      if ([...this.databases.values()].some((database) => database.name === name))
        throw new Refusal(400, 7502, 'a database with that name already exists');
      this.#write(`create database ${name}`);
      const uuid = randomUUID();
      this.databases.set(uuid, { name, database: new DatabaseSync(':memory:'), statements: [] });
      return { uuid, name, version: 'production' };
    }
    const found = this.databases.get(id);
    if (!found) throw new Refusal(404, 7404, `The database ${id} could not be found`);
    if (action !== 'query')
      return { uuid: id, name: found.name, version: 'production', num_tables: 1, file_size: 1 };
    const { sql } = json();
    if (/^\s*select\b/i.test(sql))
      return [{ results: this.#select(found.database, sql), success: true, meta: {} }];
    this.#write(`query ${sql.slice(0, 40)}`);
    try {
      found.database.exec(`BEGIN;${sql.replace(/;?\s*$/, ';')}COMMIT`);
    } catch (error) {
      if (found.database.isTransaction) found.database.exec('ROLLBACK');
      throw new Refusal(400, 7500, String(error));
    }
    found.statements.push(sql);
    return [{ results: [], success: true, meta: { duration: 1 } }];
  }

  #select(database: DatabaseSync, sql: string): unknown[] {
    try {
      return database.prepare(sql).all();
    } catch (error) {
      throw new Refusal(400, 7500, `${error instanceof Error ? error.message : error}: SQLITE_ERROR`);
    }
  }

  #find(name: string): Script {
    const script = this.scripts.get(name);
    if (!script) throw new Refusal(404, 10007, 'This Worker does not exist on your account.');
    return script;
  }

  #service(name: string): unknown {
    const { migrationTag } = this.#find(name);
    const script = {
      id: name,
      tag: 'tag',
      tags: [],
      migration_tag: migrationTag,
      last_deployed_from: 'wrangler',
    };
    return { id: name, default_environment: { environment: 'production', script } };
  }

  async #script(call: Call, [name = '', action, detail]: string[], contentType: string): Promise<unknown> {
    const { method, body } = call;
    const json = () => JSON.parse(body.toString());
    switch (action) {
      case undefined:
        return this.#upload(name, body, contentType);
      case 'assets-upload-session':
        return this.#openUpload(json().manifest);
      case 'secrets': {
        const { bindings } = this.serving(this.#named(name));
        return bindings
          .filter(({ type }) => type === 'secret_text')
          .map(({ name: secret }) => ({ name: secret, type: 'secret_text' }));
      }
      case 'secrets-bulk':
        return this.#putSecrets(this.#named(name), json().secrets);
      case 'versions': {
        if (method === 'POST') return this.#upload(name, body, contentType, false);
        const version = this.#find(name).versions.find(({ id }) => id === detail);
        if (!version) throw new Refusal(404, 10222, 'This version does not exist.');
        const bindings = version.bindings.map(({ text, ...binding }) =>
          binding.type === 'secret_text' ? binding : { ...binding, text },
        );
        const metadata = {
          created_on: new Date(0).toISOString(),
          author_email: 'a@example.test',
          source: 'wrangler',
        };
        return {
          id: version.id,
          number: 1,
          metadata,
          annotations: {},
          resources: { bindings, script: {}, script_runtime: {} },
        };
      }
      case 'deployments': {
        const script = this.#find(name);
        if (method === 'POST') {
          this.#write(`deploy a version of ${name}`);
          script.serving = json().versions[0].version_id;
        }
        const versions = [{ version_id: script.serving, percentage: 100 }];
        const deployment = {
          id: randomUUID(),
          source: 'wrangler',
          strategy: 'percentage',
          author_email: 'a@example.test',
          versions,
          annotations: {},
          created_on: new Date(0).toISOString(),
        };
        return method === 'POST' ? deployment : { deployments: [deployment] };
      }
      case 'domains':
        return this.#attach(this.#named(name), detail ?? '', json());
      case 'schedules':
        this.crons.set(
          this.#named(name),
          json().map(({ cron }: { cron: string }) => cron),
        );
        return { schedules: json() };
      case 'subdomain':
        return { enabled: false, previews_enabled: false };
      case 'settings':
      case 'script-settings':
        return { bindings: [], tags: [] };
      default:
        throw new Refusal(404, 7000, `No route for ${method} ${call.path}`);
    }
  }

  #named(name: string): string {
    this.#find(name);
    return name;
  }

  async #upload(name: string, body: Buffer, contentType: string, serves = true): Promise<unknown> {
    const form = await new Response(new Uint8Array(body), {
      headers: { 'content-type': contentType },
    }).formData();
    const metadata = JSON.parse(String(form.get('metadata'))) as Metadata;
    const before = this.scripts.get(name);
    if (metadata.migrations && (metadata.migrations.old_tag ?? null) !== (before?.migrationTag ?? null))
      throw new Refusal(412, 10079, 'The tag of the migrations differs from that of the Worker.');
    const kept = before ? this.serving(name).bindings : [];
    const keeps = ({ type, name: kept_name }: Binding) =>
      (metadata.keep_bindings ?? []).includes(type) &&
      !metadata.bindings.some((binding) => binding.name === kept_name);
    const modules = new Map<string, string>();
    for (const [field, value] of form)
      if (field !== 'metadata' && typeof value !== 'string') modules.set(field, await value.text());
    this.#write(`upload ${name}`);
    const manifest = this.#manifests.get(metadata.assets?.jwt ?? '') ?? {};
    const files = Object.entries(manifest).map(
      ([path, { hash }]) => [path, this.#files.get(hash) ?? Buffer.alloc(0)] as const,
    );
    const version = this.#add(
      name,
      {
        mainModule: metadata.main_module,
        modules,
        compatibility: {
          date: metadata.compatibility_date ?? '',
          flags: metadata.compatibility_flags ?? [],
        },
        bindings: [...metadata.bindings, ...kept.filter(keeps)],
        assetsConfig: metadata.assets?.config ?? {},
        assets: new Map(files),
      },
      serves,
    );
    const script = this.#find(name);
    script.migrationTag = metadata.migrations?.new_tag ?? script.migrationTag;
    const result = {
      id: name,
      etag: 'etag',
      startup_time_ms: 1,
      deployment_id: version.id.replaceAll('-', ''),
    };
    return serves ? result : { ...result, id: version.id, resources: { script: { etag: 'etag' } } };
  }

  #add(name: string, version: Omit<Version, 'id'>, serves = true): Version {
    const added = { ...version, id: randomUUID() };
    const script = this.scripts.get(name) ?? { versions: [], serving: added.id, migrationTag: null };
    script.versions.push(added);
    if (serves) script.serving = added.id;
    this.scripts.set(name, script);
    return added;
  }

  #putSecrets(name: string, secrets: Record<string, { name: string; text: string; type: string }>): unknown {
    this.#write(`send secrets of ${name}`);
    const version = this.serving(name);
    const others = version.bindings.filter((binding) => !(binding.name in secrets));
    this.#add(name, { ...version, bindings: [...others, ...Object.values(secrets)] });
    return {};
  }

  #openUpload(manifest: Record<string, { hash: string }>): unknown {
    const session = randomUUID();
    this.#manifests.set(session, manifest);
    const missing = Object.values(manifest).filter(({ hash }) => !this.#files.has(hash));
    return { jwt: session, buckets: missing.length > 0 ? [missing.map(({ hash }) => hash)] : [] };
  }

  async #storeFiles(body: Buffer, contentType: string, session: string): Promise<unknown> {
    const form = await new Response(new Uint8Array(body), {
      headers: { 'content-type': contentType },
    }).formData();
    for (const [hash, value] of form)
      this.#files.set(hash, Buffer.from(typeof value === 'string' ? value : await value.text(), 'base64'));
    return { jwt: session };
  }

  #attach(
    name: string,
    action: string,
    body: { hostname: string }[] & { origins?: { hostname: string }[] },
  ): unknown {
    if (action === 'changeset') return { added: [], removed: [], updated: [], conflicting: [] };
    for (const { hostname } of body.origins ?? []) {
      if (!this.zones.some((zone) => hostname.endsWith(`.${zone}`)))
        throw new Refusal(400, 10083, `workers.api.error.zone_not_found for "${hostname}"`);
      this.#write(`attach ${hostname}`);
      this.domains.set(hostname, name);
    }
    return [];
  }
}
