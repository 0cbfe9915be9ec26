import { and, eq, sql } from 'drizzle-orm';
import { projectLabel, wildcardOf } from '../../shared/project/project-name.ts';
import { isIpAddress } from '../crypto/x509.ts';
import { type Database, isOneOf } from '../database/database.ts';
import { hosts, jobs, type ProjectRow, projects } from '../database/schema.ts';
import {
  type DnsRecord,
  type DnsSettings,
  type DnsZone,
  dnsZone,
  type NewDnsRecord,
} from '../hosts/dns-records.ts';
import { logEvent } from '../log.ts';
import type { Settings } from '../settings.ts';

type NameSettings = DnsSettings & Pick<Settings, 'DB_DOMAIN' | 'DB_DOMAIN_TTL_SECONDS'>;
type NamedProject = Pick<ProjectRow, 'id' | 'appKey' | 'env'>;

/** A name that leads to the address of a host. */
interface Leading {
  projectId: string;
  name: string;
  target: string;
}

/** Gives projects names of their own. Each method throws an Error if the service refuses or is away. */
export interface NameService {
  /** Makes the name of the project lead to an address. @returns the name; null if the project gets none */
  lead(project: NamedProject, address: string): Promise<string | null>;
  remove(projectId: string, name: string): Promise<void>;
  /** Every name of a project, with what it leads to. */
  list(): Promise<Leading[]>;
}

const NO_NAMES: NameService = {
  lead: async () => null,
  remove: async () => {},
  list: async () => [],
};

const MARK = 'branchgate project ';
const ADDRESS_TYPES = ['A', 'AAAA', 'CNAME'];
const isAddress = ({ type }: DnsRecord) => ADDRESS_TYPES.includes(type);
const isOurs = ({ comment }: DnsRecord) => comment?.startsWith(MARK) ?? false;

const typeOf = (address: string) => (isIpAddress(address) ? 'A' : address.includes(':') ? 'AAAA' : 'CNAME');

const FIELDS = ['type', 'content', 'ttl', 'comment'] as const;

/** Names by records in a zone of Cloudflare. The comment of a record names its project. */
class CloudflareNames implements NameService {
  readonly #zone: DnsZone;
  readonly #domain: string;
  readonly #ttl: number;

  constructor(zone: DnsZone, domain: string, ttl: number) {
    this.#zone = zone;
    this.#domain = domain;
    this.#ttl = ttl;
  }

  /** A name for which somebody else has made a record is left alone. */
  async lead({ id, appKey, env }: NamedProject, address: string): Promise<string | null> {
    const name = `${projectLabel(appKey, env)}.${this.#domain}`;
    const wanted: NewDnsRecord = {
      type: typeOf(address),
      name,
      content: address,
      ttl: this.#ttl,
      comment: MARK + id,
    };
    const present = (await this.#zone.list({ name })).filter(isAddress);
    if (!present.every(isOurs)) {
      logEvent('project.name_taken', { project_id: id, name });
      return null;
    }
    const [first, ...others] = present;
    for (const record of others) await this.#zone.remove(record.id);
    if (!first) await this.#zone.add(wanted);
    else if (FIELDS.some((field) => first[field] !== wanted[field]))
      await this.#zone.replace(first.id, wanted);
    return name;
  }

  async remove(projectId: string, name: string): Promise<void> {
    const present = await this.#zone.list({ name });
    for (const { id, comment } of present) if (comment === MARK + projectId) await this.#zone.remove(id);
  }

  async list(): Promise<Leading[]> {
    const ending = `.${this.#domain}`;
    const records = await this.#zone.list({ 'comment.startswith': MARK, 'name.endswith': ending });
    // Another gateway can have a domain of its own in the same zone.
    return records
      .filter((record) => isAddress(record) && isOurs(record) && record.name.endsWith(ending))
      .map(({ name, content, comment }) => ({
        projectId: (comment ?? '').slice(MARK.length),
        name,
        target: content,
      }));
  }
}

/** Whether projects get names: the settings have a domain, and a zone with its token. */
export const givesNames = (settings: NameSettings): boolean =>
  settings.DB_DOMAIN !== undefined && dnsZone(settings) !== null;

function nameServiceOf(settings: NameSettings): NameService {
  const { DB_DOMAIN: domain, DB_DOMAIN_TTL_SECONDS: ttl } = settings;
  const zone = dnsZone(settings);
  return zone && domain !== undefined ? new CloudflareNames(zone, domain, ttl) : NO_NAMES;
}

/** The host of a project's connection URLs: its name, or the address of its host. */
export const addressOf = (
  { DB_DOMAIN: domain }: Pick<Settings, 'DB_DOMAIN'>,
  { dnsName }: Pick<ProjectRow, 'dnsName'>,
  { dbHost }: Pick<typeof hosts.$inferSelect, 'dbHost'>,
): string => (domain !== undefined && dnsName?.endsWith(`.${domain}`) ? dnsName : dbHost);

/** Whether clients that verify a name of the domain can connect to the host. */
const isCovered = (description: typeof hosts.$inferSelect.description, domain: string): boolean =>
  description?.certificate_names?.includes(wildcardOf(domain)) ?? false;

/** The project may move to another host meanwhile, which this follows. */
const TRIES = 3;

/**
 * Makes the name of the project lead to its host, and records that. A project without a name gets one only once the
 * certificate of its host covers it: clients that verify the name could not connect otherwise.
 */
export async function nameProject(db: Database, settings: NameSettings, projectId: string): Promise<void> {
  const { DB_DOMAIN: domain } = settings;
  const names = nameServiceOf(settings);
  for (let tries = 0; tries < TRIES; tries += 1) {
    const [found] = await db
      .select({ project: projects, address: hosts.dbHost, description: hosts.description })
      .from(projects)
      .innerJoin(hosts, eq(hosts.id, projects.hostId))
      .where(eq(projects.id, projectId));
    if (!found || domain === undefined) return;
    const { project, address, description } = found;
    if (project.dnsName === null && !isCovered(description, domain)) return;
    const dnsName = await names.lead(project, address);
    const [stored] = await db
      .update(projects)
      .set({ dnsName, dnsTarget: dnsName && address })
      .where(and(eq(projects.id, projectId), eq(projects.hostId, project.hostId)))
      .returning({ id: projects.id });
    if (stored) return;
  }
}

/** Removes the record of a project that is deleted, or whose creation is undone. */
export async function removeName(db: Database, settings: NameSettings, projectId: string): Promise<void> {
  const [project] = await db
    .select({ appKey: projects.appKey, env: projects.env, dnsName: projects.dnsName })
    .from(projects)
    .where(eq(projects.id, projectId));
  const { DB_DOMAIN: domain } = settings;
  if (!project || domain === undefined) return;
  // A creation that was killed has written the record and not yet recorded it.
  const name = project.dnsName ?? `${projectLabel(project.appKey, project.env)}.${domain}`;
  await nameServiceOf(settings).remove(projectId, name);
}

/** Names that one reconciliation repairs. It runs again after half a minute, and each takes two calls of Cloudflare. */
const REPAIRS_MAX = 20;

/**
 * Compares the names with the projects of a host: writes what is missing or leads elsewhere, and removes what
 * deleted projects have left. One failure stops no other name.
 * @returns false if some are left to the next reconciliation
 * @throws Error of the first failure
 */
export async function repairNames(db: Database, settings: NameSettings, hostId: string): Promise<boolean> {
  const { DB_DOMAIN: domain } = settings;
  if (domain === undefined || !givesNames(settings)) return true;
  const service = nameServiceOf(settings);
  // Before the projects: a project is recorded before its name.
  const present = await service.list();
  const rows = await db
    .select({ project: projects, address: hosts.dbHost, description: hosts.description })
    .from(projects)
    .innerJoin(hosts, eq(hosts.id, projects.hostId))
    .where(and(eq(projects.hostId, hostId), eq(projects.status, 'active')));
  const byProject = new Map(present.map((leading) => [leading.projectId, leading]));
  const isRight = ({ project, address, description }: (typeof rows)[number]) => {
    const { id, dnsName, dnsTarget } = project;
    const leading = byProject.get(id);
    if (dnsName === null && !isCovered(description, domain)) return true;
    return leading?.target === address && leading.name === dnsName && dnsTarget === address;
  };
  const leftovers = await endedAmong(
    db,
    present.map(({ projectId }) => projectId),
  );
  const repairs = [
    ...rows
      .filter((row) => !isRight(row))
      .map(
        ({ project }) =>
          () =>
            nameProject(db, settings, project.id),
      ),
    ...present
      .filter(({ projectId }) => leftovers.has(projectId))
      .map(
        ({ projectId, name }) =>
          () =>
            service.remove(projectId, name),
      ),
  ];
  const outcomes = await Promise.allSettled(repairs.slice(0, REPAIRS_MAX).map((repair) => repair()));
  const failed = outcomes.find(({ status }) => status === 'rejected');
  if (failed?.status === 'rejected') throw failed.reason;
  return repairs.length <= REPAIRS_MAX;
}

/** The projects that have no record any more, and had one: a restored record must not cost others their names. */
async function endedAmong(db: Database, projectIds: string[]): Promise<ReadonlySet<string>> {
  if (projectIds.length === 0) return new Set();
  const rows = await db
    .selectDistinct({ id: jobs.projectId })
    .from(jobs)
    .where(
      and(
        isOneOf(jobs.projectId, projectIds),
        sql`not exists (select 1 from ${projects} where ${projects.id} = ${jobs.projectId})`,
      ),
    );
  return new Set(rows.map(({ id }) => id));
}
