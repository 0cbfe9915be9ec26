import { and, count, eq, sql } from 'drizzle-orm';
import ipaddr from 'ipaddr.js';
import { isNameIn, projectLabel, wildcardOf } from '../../shared/project/dns-name.ts';
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

const MARK = 'branchgate project ';
const ADDRESS_TYPES = ['A', 'AAAA', 'CNAME'];
const isAddress = ({ type }: DnsRecord) => ADDRESS_TYPES.includes(type);
const isOurs = ({ comment }: DnsRecord) => comment?.startsWith(MARK) ?? false;

const typeOf = (address: string) => (isIpAddress(address) ? 'A' : address.includes(':') ? 'AAAA' : 'CNAME');

/** One spelling of an address, because Cloudflare does not store that of the operator. */
const canonical = (address: string) =>
  ipaddr.IPv6.isValid(address) ? ipaddr.IPv6.parse(address).toString() : address.toLowerCase();

const FIELDS = ['type', 'content', 'ttl', 'comment'] as const;

/**
 * Names of projects by records in a zone of Cloudflare. The comment of a record names its project. Each method throws
 * an Error if Cloudflare refuses or is away.
 */
class DnsNames {
  readonly #zone: DnsZone;
  readonly domain: string;
  readonly #ttl: number;

  constructor(zone: DnsZone, domain: string, ttl: number) {
    this.#zone = zone;
    this.domain = domain;
    this.#ttl = ttl;
  }

  nameOf({ appKey, env }: Omit<NamedProject, 'id'>): string {
    return `${projectLabel(appKey, env)}.${this.domain}`;
  }

  /**
   * Makes the name of the project lead to an address. A name for which somebody else has made a record is left alone.
   * @returns the name; null if the project gets none
   */
  async lead({ id, ...project }: NamedProject, address: string): Promise<string | null> {
    const name = this.nameOf(project);
    const wanted: NewDnsRecord = {
      type: typeOf(address),
      name,
      content: canonical(address),
      ttl: this.#ttl,
      comment: MARK + id,
    };
    const present = await this.#addresses({ name });
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

  /** Every name of a project, with what it leads to in its canonical spelling. */
  async list(): Promise<Leading[]> {
    const ending = `.${this.domain}`;
    const records = await this.#addresses({ 'comment.startswith': MARK, 'name.endswith': ending });
    // Another gateway can have a domain of its own in the same zone.
    return records
      .filter((record) => isOurs(record) && isNameIn(this.domain, record.name))
      .map(({ name, content, comment }) => ({
        projectId: (comment ?? '').slice(MARK.length),
        name,
        target: content,
      }));
  }

  async #addresses(filter: Record<string, string>): Promise<DnsRecord[]> {
    const records = (await this.#zone.list(filter)).filter(isAddress);
    return records.map((record) => ({ ...record, content: canonical(record.content) }));
  }
}

/** Returns whether projects get names: the settings have a domain, and a zone with its token. */
export const givesNames = (settings: NameSettings): boolean => dnsNamesOf(settings) !== null;

function dnsNamesOf(settings: NameSettings): DnsNames | null {
  const { DB_DOMAIN: domain, DB_DOMAIN_TTL_SECONDS: ttl } = settings;
  const zone = dnsZone(settings);
  return zone && domain !== undefined ? new DnsNames(zone, domain, ttl) : null;
}

type HostRow = typeof hosts.$inferSelect;

/** The host of a project's connection URLs: its name if clients can verify it, or the address of its host. */
export const addressOf = (
  { DB_DOMAIN: domain }: Pick<Settings, 'DB_DOMAIN'>,
  { dnsName }: Pick<ProjectRow, 'dnsName'>,
  { dbHost, description }: Pick<HostRow, 'dbHost' | 'description'>,
): string =>
  domain !== undefined && dnsName !== null && isNameIn(domain, dnsName) && isCovered(description, domain)
    ? dnsName
    : dbHost;

/** Returns whether the connection URLs of a project differ between the two hosts of a move, one of which may be gone. */
export function urlsChange(
  settings: Pick<Settings, 'DB_DOMAIN'>,
  project: Pick<ProjectRow, 'dnsName'>,
  rows: readonly Pick<HostRow, 'dbHost' | 'description' | 'directPort' | 'pooledPort'>[],
): boolean {
  const places = rows.map((host) => [addressOf(settings, project, host), host.directPort, host.pooledPort]);
  return rows.length < 2 ? project.dnsName === null : new Set(places.map(String)).size > 1;
}

/** Returns whether clients that verify a name of the domain can connect to the host. */
const isCovered = (description: HostRow['description'], domain: string): boolean =>
  description?.certificate_names?.includes(wildcardOf(domain)) ?? false;

/**
 * Returns whether the project has a name in the domain or can get one. A name that it has follows it to any host, because URLs
 * with that name are in use.
 */
const isNamed = (
  domain: string,
  { dnsName }: Pick<ProjectRow, 'dnsName'>,
  description: HostRow['description'],
): boolean => (dnsName !== null && isNameIn(domain, dnsName)) || isCovered(description, domain);

/** The project may move to another host meanwhile, which this follows. */
const TRIES = 3;

/**
 * Makes the name of the project lead to its host, and records that. A project without a name gets one only once the
 * certificate of its host covers it: clients that verify the name could not connect otherwise.
 */
export async function nameProject(db: Database, settings: NameSettings, projectId: string): Promise<void> {
  const names = dnsNamesOf(settings);
  if (!names) return;
  for (let tries = 0; tries < TRIES; tries += 1) {
    const [found] = await db
      .select({ project: projects, address: hosts.dbHost, description: hosts.description })
      .from(projects)
      .innerJoin(hosts, eq(hosts.id, projects.hostId))
      .where(eq(projects.id, projectId));
    if (!found) return;
    const { project, address, description } = found;
    if (!isNamed(names.domain, project, description)) return;
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
  const names = dnsNamesOf(settings);
  if (!project || !names) return;
  // A creation that was killed has written the record and not yet recorded it.
  await names.remove(projectId, project.dnsName ?? names.nameOf(project));
}

/**
 * Names that the reconciliations of all hosts repair in half a minute, after which each runs again. A repair takes two
 * calls of Cloudflare, which allows a token 1,200 in five minutes.
 */
const REPAIRS_MAX = 20;

/**
 * Compares the names with the projects of a host: writes what is missing or leads elsewhere, and removes what
 * deleted projects have left. One failure stops no other name.
 * @returns false if some are left to the next reconciliation
 * @throws Error of the first failure
 */
export async function repairNames(db: Database, settings: NameSettings, hostId: string): Promise<boolean> {
  const names = dnsNamesOf(settings);
  if (!names) return true;
  // Before the projects: a project is recorded before its name.
  const present = await names.list();
  const [[host], rows, [registered]] = await db.batch([
    db
      .select({ address: hosts.dbHost, description: hosts.description })
      .from(hosts)
      .where(eq(hosts.id, hostId)),
    db
      .select({ id: projects.id, dnsName: projects.dnsName, dnsTarget: projects.dnsTarget })
      .from(projects)
      .where(and(eq(projects.hostId, hostId), eq(projects.status, 'active'))),
    db.select({ hosts: count() }).from(hosts),
  ]);
  if (!host || !registered) return true;
  const { address, description } = host;
  const byProject = new Map(present.map((leading) => [leading.projectId, leading]));
  const isRight = (project: (typeof rows)[number]) => {
    const leading = byProject.get(project.id);
    if (!isNamed(names.domain, project, description)) return true;
    return (
      leading?.target === canonical(address) &&
      leading.name === project.dnsName &&
      project.dnsTarget === address
    );
  };
  const leftovers = await endedAmong(
    db,
    present.map(({ projectId }) => projectId),
  );
  const repairs = [
    ...rows
      .filter((project) => !isRight(project))
      .map(
        ({ id }) =>
          () =>
            nameProject(db, settings, id),
      ),
    ...present
      .filter(({ projectId }) => leftovers.has(projectId))
      .map(
        ({ projectId, name }) =>
          () =>
            names.remove(projectId, name),
      ),
  ];
  const most = Math.max(1, Math.floor(REPAIRS_MAX / registered.hosts));
  // Begins anywhere, because names that are refused each time must not stop the others.
  const first = Math.floor(Math.random() * repairs.length);
  const chosen = [...repairs.slice(first), ...repairs.slice(0, first)].slice(0, most);
  const outcomes = await Promise.allSettled(chosen.map((repair) => repair()));
  const failed = outcomes.find(({ status }) => status === 'rejected');
  if (failed?.status === 'rejected') throw failed.reason;
  return repairs.length <= most;
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
