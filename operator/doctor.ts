import { lookup } from 'node:dns/promises';
import { CommandError, explain } from '../cli/exit-codes.ts';
import { type BranchgateClient, createClient, type Schemas } from '../client/client.ts';
import { bytes } from '../shared/format.ts';
import { wildcardOf } from '../shared/project/dns-name.ts';
import { take } from '../shared/take.ts';
import { artifactsOfCheckout, migrationsOf, wranglerConfiguration } from './artifacts.ts';
import { Cloudflare } from './cloudflare.ts';
import { type Deployment, DeploymentFolder } from './deployment.ts';
import { askReadiness, reasonOf } from './gateway.ts';
import { GENERATED_SECRETS, SecretsFile } from './secrets-file.ts';
import { serverCertificate } from './server-certificate.ts';
import { checkSettings } from './settings.ts';

type Host = Schemas['Host'];

export interface Finding extends Record<string, unknown> {
  check: string;
  ok: boolean;
  result: string;
}

const REQUEST_MS = 10_000;
const DAY_MS = 86_400_000;
const CERTIFICATE_DAYS = 21;
const BACKUP_HOURS = 36;

/** A check that failed: what is wrong, then what to do. */
class Fault extends Error {}

async function check(name: string, work: () => Promise<string>): Promise<Finding> {
  try {
    return { check: name, ok: true, result: await work() };
  } catch (error) {
    return { check: name, ok: false, result: error instanceof Fault ? error.message : explain(error) };
  }
}

/** Examines the gateway and its hosts. It changes nothing. */
export async function diagnose(path: string): Promise<Finding[]> {
  const folder = new DeploymentFolder(path);
  const deployment = folder.read();
  if (!deployment)
    throw new CommandError('usage', `${path} has no record of a deployment. Run \`npm run deploy\` first.`);
  const url = `https://${deployment.address}`;
  return [
    ...(await Promise.all([
      check('gateway', () => gateway(url)),
      check('database', () => database(folder, deployment)),
      check('secrets', () => secrets(folder, deployment)),
      check('settings', async () => {
        checkSettings({ ...deployment.vars, BASE_URL: url });
        return 'valid';
      }),
      check('size of D1', () => databaseSize(deployment, url)),
      check('mail', () => mail(deployment)),
      check('names of projects', () => projectNames(folder, deployment)),
      check('sign-in provider', () => signInProvider(deployment)),
    ])),
    ...(await hosts(deployment, url)),
  ];
}

async function gateway(url: string): Promise<string> {
  const answer = await askReadiness(url);
  if (answer === 'ready') return `${url} answers`;
  if (answer === 'without_host')
    throw new Fault(
      `${url} answers, but no database host is connected. Add one with \`branchgate host add\`.`,
    );
  throw new Fault(
    `${url} does not answer: ${answer.reason}. Run \`npm run deploy\` again, and look at the Worker's logs in the dashboard.`,
  );
}

async function database(folder: DeploymentFolder, deployment: Deployment): Promise<string> {
  const artifacts = artifactsOfCheckout();
  const configuration = wranglerConfiguration(deployment, artifacts);
  const cloudflare = new Cloudflare(folder.path, deployment.account_id).configuredBy(
    folder.storeConfiguration(configuration),
  );
  const applied = await cloudflare.appliedMigrations(deployment.name);
  const all = deployment.migrations ?? migrationsOf(artifacts);
  const missing = all.filter((name) => !applied.includes(name));
  if (missing.length > 0)
    throw new Fault(
      `D1 lacks ${missing.length} of ${all.length} migrations. Run \`npm run deploy -- upgrade\`.`,
    );
  return `D1 answers, with ${applied.length} migrations`;
}

const D1_BYTES_MAX = 10e9;
const D1_BYTES_ENOUGH = 8e9;

/** As the metrics of the gateway say. */
async function databaseSize({ vars, ...deployment }: Deployment, url: string): Promise<string> {
  const response = await fetch(`${url}/platform/v1/metrics`, {
    headers: { Authorization: `Bearer ${platformSecretOf({ vars, ...deployment })}` },
    signal: AbortSignal.timeout(REQUEST_MS),
  });
  const found = /^branchgate_d1_bytes (\S+)$/m.exec(await response.text())?.[1];
  if (!response.ok || found === undefined)
    throw new Fault(`The gateway does not say the size of D1 (status ${response.status}).`);
  const size = Number(found);
  const kept = ['AUDIT_RETENTION_DAYS', 'HISTORY_RETENTION_DAYS'].filter((name) => vars[name] === undefined);
  const advice = kept.length > 0 ? `Set ${kept.join(' and ')}` : 'Keep less';
  if (size > D1_BYTES_ENOUGH)
    throw new Fault(`D1 has ${bytes(size)} of ${bytes(D1_BYTES_MAX)}. ${advice}: see docs/operating.md.`);
  return `${bytes(size)} of ${bytes(D1_BYTES_MAX)}${kept.length > 0 ? `; ${kept.join(' and ')} not set, so history stays` : ''}`;
}

async function secrets(folder: DeploymentFolder, deployment: Deployment): Promise<string> {
  const cloudflare = new Cloudflare(folder.path, deployment.account_id);
  const present = await cloudflare.secretNames(deployment.name);
  const missing = GENERATED_SECRETS.filter((name) => !present?.includes(name));
  if (missing.length > 0) throw new Fault(`The Worker lacks ${missing.join(', ')}. Run \`npm run deploy\`.`);
  const copy = copyOf(deployment).read();
  const uncopied = GENERATED_SECRETS.filter((name) => copy[name] === undefined);
  if (uncopied.length > 0)
    throw new Fault(
      `${deployment.secrets_file} lacks ${uncopied.join(', ')}, which Cloudflare does not show again. Restore the file from a backup.`,
    );
  return `complete, with a copy in ${deployment.secrets_file}`;
}

async function mail({ vars }: Deployment): Promise<string> {
  const { MAIL_API_URL: service, MAIL_FROM: sender } = vars;
  if (service === undefined)
    throw new Fault(
      'No mail is sent, so nobody can be invited or sign in by mail. Give --var MAIL_API_URL=<address of your mail service>, and its key in MAIL_API_KEY.',
    );
  await reach(service);
  return `${sender} by ${new URL(service).host}`;
}

/** The token is a secret, so only its presence can be examined. */
async function projectNames(folder: DeploymentFolder, deployment: Deployment): Promise<string> {
  const { DB_DOMAIN: domain, DNS_ZONE_ID: zone } = deployment.vars;
  if (domain === undefined) return 'none: connection URLs show the addresses of the hosts';
  const cloudflare = new Cloudflare(folder.path, deployment.account_id);
  const present = await cloudflare.secretNames(deployment.name);
  const missing = [
    zone ? [] : ['DNS_ZONE_ID'],
    present?.includes('DNS_API_TOKEN') ? [] : ['DNS_API_TOKEN'],
  ].flat();
  if (missing.length > 0)
    throw new Fault(
      `Projects get no names in ${domain} without ${missing.join(' and ')}. See docs/many-hosts.md.`,
    );
  return `in ${domain}`;
}

async function signInProvider({ vars }: Deployment): Promise<string> {
  const { IDP_URL: provider } = vars;
  if (provider === undefined) return 'none: accounts of the gateway only';
  const response = await reach(`${provider.replace(/\/$/, '')}/.well-known/openid-configuration`);
  if (!response.ok)
    throw new Fault(
      `${provider} responds to its discovery document with status ${response.status}. Check IDP_URL.`,
    );
  return provider;
}

async function reach(address: string): Promise<Response> {
  try {
    return await fetch(address, { signal: AbortSignal.timeout(REQUEST_MS), redirect: 'manual' });
  } catch (error) {
    throw new Fault(`${new URL(address).host} cannot be reached: ${reasonOf(error)}. Check its address.`);
  }
}

/** @throws CommandError without one */
function platformSecretOf(deployment: Deployment): string {
  const copy = copyOf(deployment);
  const { PLATFORM_SECRET = process.env.BRANCHGATE_PLATFORM_SECRET } = copy.read();
  if (!PLATFORM_SECRET) throw copy.missing('PLATFORM_SECRET');
  return PLATFORM_SECRET;
}

const copyOf = ({ secrets_file, address }: Deployment) => new SecretsFile(secrets_file, `https://${address}`);

async function hosts(deployment: Deployment, url: string): Promise<Finding[]> {
  let found: Host[] = [];
  const listing = await check('hosts', async () => {
    found = await hostsOf(createClient({ url, token: platformSecretOf(deployment) }));
    if (found.length === 0) throw new Fault('There is no database host. Add one with `branchgate host add`.');
    return `${found.length} registered`;
  });
  const { DB_DOMAIN: domain = null } = deployment.vars;
  const findings = await Promise.all(found.map((host) => hostFindings(host, domain)));
  return [listing, ...findings.flat()];
}

const hostsOf = (client: BranchgateClient) => take(client.all('/platform/v1/hosts'));

/** Examines one host from here, as its clients see it. @param domain of the names of its projects, if they have names */
export function hostFindings(host: Host, domain: string | null = null): Promise<Finding[]> {
  const { role = 'primary' } = host.members.find(({ host_id }) => host_id === host.id) ?? {};
  const ofStandby = check(`${host.name}: standby`, () => standby(host));
  // Its servers are closed.
  if (role === 'fenced') return Promise.all([ofStandby]);
  return Promise.all([
    check(`${host.name}: agent`, () => agent(host)),
    check(`${host.name}: name`, () => address(host)),
    check(`${host.name}: certificate of port ${host.direct_port}`, () => certificate(host, host.direct_port)),
    check(`${host.name}: certificate of port ${host.pooled_port}`, () => certificate(host, host.pooled_port)),
    ...(domain === null ? [] : [check(`${host.name}: names of projects`, () => coversNames(host, domain))]),
    ...(host.members.length > 1 ? [ofStandby] : []),
    ...(role === 'primary' ? [check(`${host.name}: backups`, () => backups(host))] : []),
  ]);
}

async function agent({ name, linked, enrolled_at: enrolledAt, description }: Host): Promise<string> {
  if (enrolledAt === null)
    throw new Fault(
      `${name} was never enrolled. Run the command on its machine that \`branchgate host add\` printed.`,
    );
  if (!linked) throw new Fault('It is not connected. Look at `journalctl -u branchgate-agent` on the host.');
  if (description && description.warnings.length > 0) throw new Fault(description.warnings.join(' '));
  return `connected, version ${description?.agent_version ?? 'unknown'}`;
}

const BEHIND_SECONDS = 60;

/** Each host reports its own part. */
async function standby({ id, members }: Host): Promise<string> {
  const own = members.find(({ host_id }) => host_id === id);
  const other = members.find(({ role }) => role === 'standby');
  if (own?.role === 'fenced')
    throw new Fault(
      'Another host has taken its place. Run `branchgate-agent rejoin` on it to make it the standby, or remove it.',
    );
  if (other?.lag_bytes == null)
    throw new Fault(
      'There is no standby that follows. Look at the agents and at PostgreSQL of both hosts; a standby that was away for too long needs `branchgate-agent rejoin`.',
    );
  const { lag_seconds: seconds } = other;
  if (seconds === null || seconds > BEHIND_SECONDS)
    throw new Fault(
      `The standby is ${Math.round(seconds ?? 0)} s behind. Look at the disk and the network of both hosts.`,
    );
  return own?.role === 'standby' ? `${other.lag_bytes} bytes behind` : 'has a standby that follows';
}

async function address({ db_host: name }: Host): Promise<string> {
  try {
    return (await lookup(name)).address;
  } catch (error) {
    throw new Fault(`${name} has no address (${reasonOf(error)}). Make its DNS record.`);
  }
}

async function certificate(
  { db_host: name, ca_certificate: authority }: Host,
  port: number,
): Promise<string> {
  const { endsAt, distrust } = await serverCertificate(name, port, authority).catch((error) => {
    throw new Fault(
      `${name}:${port} cannot be examined: ${reasonOf(error)}. Check its firewall and its server.`,
    );
  });
  if (distrust !== null) throw new Fault(`Clients do not trust it: ${distrust}. Replace it.`);
  const days = Math.floor((endsAt.getTime() - Date.now()) / DAY_MS);
  if (days < CERTIFICATE_DAYS) throw new Fault(`It ends in ${days} days. Renew it on the host.`);
  return `valid for ${days} days`;
}

/** A name that no project has. */
const SOME_LABEL = 'branchgate-doctor';

async function coversNames(
  { name, db_host: address, direct_port, pooled_port, ca_certificate: authority }: Host,
  domain: string,
): Promise<string> {
  const wildcard = wildcardOf(domain);
  for (const port of [direct_port, pooled_port]) {
    const { distrust } = await serverCertificate(address, port, authority, `${SOME_LABEL}.${domain}`).catch(
      (error) => {
        throw new Fault(`${address}:${port} cannot be examined: ${reasonOf(error)}.`);
      },
    );
    if (distrust !== null)
      throw new Fault(
        `The certificate of port ${port} is not valid for ${wildcard} (${distrust}), so new projects of ${name} get no names. Replace it by one for ${address} and ${wildcard}: see docs/many-hosts.md.`,
      );
  }
  return `the certificate is valid for ${wildcard}`;
}

async function backups({ description }: Host): Promise<string> {
  const last = description?.last_backup_at ?? null;
  if (last === null) throw new Fault('There is no backup. Make one, and check its timer on the host.');
  const hours = Math.floor((Date.now() - Date.parse(last)) / 3_600_000);
  if (hours > BACKUP_HOURS)
    throw new Fault(`The last backup is ${hours} hours old. Check its timer on the host.`);
  return `the last one is ${hours} hours old`;
}
