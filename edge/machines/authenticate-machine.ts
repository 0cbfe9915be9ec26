import { isInNetwork } from '../../shared/cidr.ts';
import { isWorkloadToken, type OwnTokenSettings, verifyOwnToken } from '../authentication/own-tokens.ts';
import type { Machine, Principal } from '../authentication/principal.ts';
import { rejected } from '../authentication/rejection.ts';
import { lesserRole } from '../authentication/role.ts';
import { isSameText } from '../authentication/same-text.ts';
import { ApiError } from '../errors.ts';
import { logEvent } from '../log.ts';
import { sha256 } from '../sha256.ts';
import { isApiKey, readApiKey } from './api-key-form.ts';
import { type MachineRecord, machineRecord, recordUse } from './machine-record.ts';

interface MachineBearer {
  record: MachineRecord;
  /** Of the key, or of the workload's token. */
  expiresAt: Date;
}

interface Context {
  settings: OwnTokenSettings;
  database: D1Database;
  /** Address of the client, if it is known. */
  address: string | null;
  now: Date;
  waitUntil: (work: Promise<unknown>) => void;
}

/** Whether a bearer token is one of a machine, by its form alone. */
export const isMachineToken = (settings: OwnTokenSettings, token: string): boolean =>
  isApiKey(token) || isWorkloadToken(settings, token);

/**
 * The bearer of an API key, or of the access token of a workload. It acts in the name of the user who created it, with
 * the lesser of both roles.
 * @throws ApiError UNAUTHENTICATED; FORBIDDEN for a key that is used from an address outside its networks
 */
export async function authenticateMachine(token: string, context: Context): Promise<Principal> {
  const { settings, database, now, waitUntil } = context;
  const bearer = isApiKey(token) ? await bearerOfKey(token, context) : await bearerOfToken(token, context);
  const { record } = bearer;
  checkAddress(record, context);
  waitUntil(
    recordUse(database, record, now).catch((error: Error) => {
      logEvent('machine.use_not_recorded', { reason: error.message });
    }),
  );
  return machinePrincipal(bearer, settings);
}

async function bearerOfKey(token: string, { database, now }: Context): Promise<MachineBearer> {
  const parts = readApiKey(token);
  if (!parts) throw rejected('api_key_form_wrong');
  const record = await machineRecord(database, { type: 'key', id: parts.id }, now);
  // Compared even if there is no such key, so that the response time does not reveal which IDs exist.
  if (!(await isSameText(await sha256(parts.secret), record?.secretHash ?? '')) || !record) {
    throw rejected('api_key_unknown');
  }
  const { expiresAt } = record;
  if (!expiresAt || expiresAt <= now) throw rejected('api_key_expired');
  return { record, expiresAt };
}

async function bearerOfToken(token: string, { settings, database, now }: Context): Promise<MachineBearer> {
  const { sub, exp } = await verifyOwnToken(settings, 'workload', token, now);
  const record = await machineRecord(database, { type: 'workload', id: sub } satisfies Machine, now);
  if (!record) throw rejected('trust_gone');
  return { record, expiresAt: new Date(exp * 1000) };
}

/** Only a bearer with the right secret learns the networks. */
function checkAddress({ cidrs }: MachineRecord, { address }: Context): void {
  if (cidrs === null || cidrs.some((cidr) => address !== null && isInNetwork(address, cidr))) return;
  const message = `The API key cannot be used from your address ${address ?? '(unknown)'}. Use it from ${cidrs.join(', ')}, or create a key for your network with POST /api/v1/api-keys.`;
  throw new ApiError('FORBIDDEN', { message, required: `an address in ${cidrs.join(', ')}` }, 'address');
}

/** The machine as its record describes it now. */
export function machinePrincipal(
  { record, expiresAt }: MachineBearer,
  settings: Pick<OwnTokenSettings, 'BASE_URL' | 'SERVICE_NAME'>,
): Principal {
  const { type, id, creator, tenantId, projectId, branchPattern } = record;
  return {
    issuer: settings.BASE_URL,
    gid: id,
    email: creator.email,
    role: lesserRole(record.role, creator.role),
    scopes: record.scopes.map((scope) => `${settings.SERVICE_NAME}:${scope}`),
    service: settings.SERVICE_NAME,
    tenantId,
    issuedAt: new Date(0),
    expiresAt,
    userId: creator.id,
    machine: { type, id, creatorRole: creator.role, projectId, branchPattern },
  };
}
