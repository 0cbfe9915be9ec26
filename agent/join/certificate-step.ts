import { generateKeyPairSync } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { GatewayRefusal, requestCertificate, setDnsChallenge } from '../link/host-certificate.ts';
import { type HostIdentity, readIdentity } from '../link/identity.ts';
import { newAccountKey, orderCertificate } from '../servers/acme.ts';
import { daysUntil, endOfCertificate, faultOfPair } from '../servers/certificate.ts';
import { type Context, TLS } from './context.ts';
import { POOLER_UNIT } from './find-servers.ts';
import { type Placing, StepFailure } from './machine.ts';
import { disable, enable, isActive } from './services.ts';
import { install, STANDBY_UNIT, type Step, UNITS } from './step.ts';

const FOLDER = dirname(TLS.certFile);
/** Its presence says that this host gets its certificate by ACME, and renews it. */
const ACCOUNT_KEY = join(FOLDER, 'acme-account.key');
/** Its presence says that this host gets its certificate from the gateway's own authority, and renews it. */
const OF_GATEWAY = join(FOLDER, 'of-gateway');
/** Exists while the servers have not read the present files. */
const UNREAD = join(FOLDER, 'unread');
const RENEWAL_UNIT = 'branchgate-certificate.service';
const RENEWAL_TIMER = 'branchgate-certificate.timer';

/** Before the warnings begin, which therefore say that the renewal fails. */
const RENEWED_DAYS_BEFORE = 30;

const isRenewed = ({ machine }: Context) => [ACCOUNT_KEY, OF_GATEWAY].some((mark) => machine.exists(mark));

const NO_FILES = '--tls-cert and --tls-key are missing';
const GIVE_FILES =
  'give the certificate chain and the key for the address of this host, for instance fullchain.pem and privkey.pem of certbot';

interface Pair {
  certificate: string;
  key: string;
}

/** The certificate of the options, the present one, or an ordered one. */
async function installCertificate(context: Context): Promise<void> {
  const { machine } = context;
  const pair = (await givenPair(context)) ?? (await presentOrOrdered(context));
  if (pair === null) return;
  const fault = faultOfPair(pair.certificate, pair.key);
  if (fault) throw new StepFailure('refused', fault);
  machine.note(`it ends in ${daysUntil(endOfCertificate(pair.certificate))} days`);
  await placePair(context, pair);
  await reloadServers(context);
}

async function givenPair({ machine, options: { tlsCert, tlsKey } }: Context): Promise<Pair | null> {
  if ((tlsCert === undefined) !== (tlsKey === undefined))
    throw new StepFailure('usage', '--tls-cert and --tls-key belong together: give both');
  if (tlsCert === undefined || tlsKey === undefined) return null;
  const pair = { certificate: readGiven(tlsCert), key: readGiven(tlsKey) };
  if (machine.exists(ACCOUNT_KEY))
    await machine.change('ended the renewal by ACME', () => machine.remove(ACCOUNT_KEY));
  if (machine.exists(OF_GATEWAY)) {
    await machine.change("ended the renewal by the gateway's authority", () => machine.remove(OF_GATEWAY));
    machine.note(
      'clients still get the authority of the gateway: name that of these files by `branchgate host set <name> --ca <file>`, or --ca none',
    );
  }
  return pair;
}

function readGiven(path: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch (error) {
    throw new StepFailure('usage', `${path} cannot be read: ${(error as Error).message}`);
  }
}

/** @returns null in a dry run that would order one */
async function presentOrOrdered(context: Context): Promise<Pair | null> {
  const { machine } = context;
  const certificate = machine.read(TLS.certFile);
  const key = machine.read(TLS.keyFile);
  const present = certificate === null || key === null ? null : { certificate, key };
  if (present && !(isRenewed(context) && isDue(present))) return present;
  // A dry run enrols nothing, so it cannot ask the gateway who issues.
  if (machine.isDryRun && !(await readIdentity(machine.at(context.settings.STATE_DIR)))) {
    await machine.change("got a certificate by ACME or of the gateway's authority", async () => {});
    return null;
  }
  const ordered: { pair: Pair | null } = { pair: null };
  const { how, order } = await issuerFor(context, await identityOf(context));
  await machine.change(`got a certificate ${how}`, async () => {
    ordered.pair = await order();
  });
  return ordered.pair;
}

const isDue = ({ certificate, key }: Pair) =>
  faultOfPair(certificate, key) !== null || daysUntil(endOfCertificate(certificate)) < RENEWED_DAYS_BEFORE;

async function identityOf({ machine, settings }: Context): Promise<HostIdentity> {
  const identity = await readIdentity(machine.at(settings.STATE_DIR));
  if (identity) return identity;
  throw new StepFailure(
    'usage',
    `${NO_FILES}, and a host that is not enrolled gets no certificate: ${GIVE_FILES}`,
  );
}

interface Issuer {
  how: string;
  order: () => Promise<Pair>;
}

/** By ACME if the gateway can prove the name of this host, otherwise the gateway's own authority. */
async function issuerFor(context: Context, identity: HostIdentity): Promise<Issuer> {
  const { machine, settings } = context;
  const setRecord = (value: string | null) => setDnsChallenge(settings.GATEWAY_URL ?? '', identity, value);
  const ofGateway = { how: "of the gateway's authority", order: () => orderOfGateway(context, identity) };
  if (machine.exists(OF_GATEWAY)) return ofGateway;
  try {
    const name = await setRecord(null);
    return { how: 'by ACME', order: () => orderByAcme(context, name, setRecord) };
  } catch (error) {
    const { message } = error as Error;
    const hasNoRecords = error instanceof GatewayRefusal && error.code === 'DNS_NOT_CONFIGURED';
    // Clients of a host with a public certificate do not know the gateway's authority.
    if (hasNoRecords && !machine.exists(ACCOUNT_KEY)) return ofGateway;
    throw new StepFailure(
      'usage',
      `${NO_FILES}, and the gateway cannot prove the name of this host (${message}): ${GIVE_FILES}`,
    );
  }
}

async function orderOfGateway(
  { machine, settings: { GATEWAY_URL = '' } }: Context,
  identity: HostIdentity,
): Promise<Pair> {
  const { publicKey, privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' });
  try {
    const serverKey = publicKey.export({ format: 'jwk' });
    const { certificate, db_host } = await requestCertificate(GATEWAY_URL, identity, serverKey);
    await machine.put(OF_GATEWAY, '');
    machine.note(`clients of ${db_host} find the authority in the credentials of a branch`);
    return { certificate, key: privateKey.export({ type: 'pkcs8', format: 'pem' }).toString() };
  } catch (error) {
    const kind = error instanceof GatewayRefusal && error.code !== null ? 'refused' : 'unreachable';
    throw new StepFailure(kind, `the gateway issues no certificate: ${(error as Error).message}`);
  }
}

async function orderByAcme(
  { machine, settings: { ACME_DIRECTORY } }: Context,
  name: string,
  setRecord: (value: string | null) => Promise<string>,
): Promise<Pair> {
  const known = machine.read(ACCOUNT_KEY);
  const accountKey = known ?? (await newAccountKey());
  if (known === null) await machine.put(ACCOUNT_KEY, accountKey, { mode: 0o600 });
  try {
    return await orderCertificate({
      directory: ACME_DIRECTORY,
      accountKey,
      name,
      setRecord,
      awaitsRecord: machine.at('/') === '/',
    });
  } catch (error) {
    throw new StepFailure(
      'unreachable',
      `${name} gets no certificate by ACME (${(error as Error).message}): repeat this later, or ${GIVE_FILES}`,
    );
  }
}

async function placePair({ machine }: Context, { certificate, key }: Pair): Promise<void> {
  await machine.makeFolder(FOLDER, { mode: 0o755 });
  // PostgreSQL refuses a key that others can read.
  const placed: [string, string, Placing][] = [
    [TLS.keyFile, key, { mode: 0o600, owner: 'postgres' }],
    [TLS.certFile, certificate, { mode: 0o644 }],
  ];
  for (const [path, content, placing] of placed)
    if (machine.read(path) !== content || !machine.isPlaced(path, placing))
      await machine.change(`wrote ${path}`, async () => {
        await machine.put(UNREAD, '');
        await machine.put(path, content, placing);
      });
}

/** Clients that are connected keep their sessions: both servers use the new files for new connections. */
async function reloadServers({ machine, servers }: Context): Promise<void> {
  if (!machine.exists(UNREAD)) return;
  for (const unit of [servers.postgres.unit, POOLER_UNIT, STANDBY_UNIT])
    if (await isActive(machine, unit)) await machine.run(`reloaded ${unit}`, 'systemctl', ['reload', unit]);
  await machine.remove(UNREAD);
}

async function removeCertificate({ machine }: Context): Promise<void> {
  if (machine.exists(FOLDER)) await machine.change(`removed ${FOLDER}`, () => machine.remove(FOLDER));
}

export const CERTIFICATE_STEP: Step = {
  name: 'certificate',
  what: "copy the certificate and its key for both servers, or get one by ACME or of the gateway's authority",
  apply: installCertificate,
  takeBack: removeCertificate,
  isTakenBackLate: true,
};

export const RENEWAL_STEP: Step = {
  name: 'renewal',
  what: 'renew a certificate that was got so, 30 days before its end',
  async apply(context) {
    const { machine, files } = context;
    const paths = [RENEWAL_UNIT, RENEWAL_TIMER].map((name) => `${UNITS}/${name}`);
    const [unit = '', timer = ''] = paths;
    if (!isRenewed(context)) {
      if (!files.record().files[timer]) return;
      await disable(machine, RENEWAL_TIMER);
      await files.drop(paths);
      return;
    }
    await install(context, 'branchgate-certificate.service', unit);
    await install(context, 'branchgate-certificate.timer', timer);
    await enable(machine, RENEWAL_TIMER);
  },
  async takeBack({ machine, files }) {
    if (files.record().files[`${UNITS}/${RENEWAL_TIMER}`]) await disable(machine, RENEWAL_TIMER);
  },
};
