import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { exportJWK, generateKeyPair } from 'jose';
import { EnrolmentReply, type EnrolmentRequest } from '../../shared/protocol/enrolment.ts';
import { gatewayAddress } from './gateway-address.ts';
import {
  type HostIdentity,
  PrivateKey,
  readIdentity,
  readState,
  writeIdentity,
  writeState,
} from './identity.ts';

const REPLY_WITHIN_MS = 15_000;

/** Why the enrolment failed, for the operator. */
export class EnrolmentError extends Error {
  override readonly name: string = 'EnrolmentError';
}

/** The host has an identity, perhaps a damaged one, which only `force` replaces. */
export class EnrolledError extends EnrolmentError {
  override readonly name = 'EnrolledError';
}

/** The gateway refused the token. */
export class TokenRefusedError extends EnrolmentError {
  override readonly name = 'TokenRefusedError';
}

const REFUSALS: Record<number, string> = {
  401: 'the enrolment token is invalid, already used by another key, or expired: get a new one with `branchgate host add`, or with `branchgate host set --new-machine` if the host was enrolled before',
  422: 'the enrolment token is malformed: copy the whole token again',
};

interface Enrolment {
  gatewayUrl: string;
  stateDir: string;
  /** The one-time token that `POST /platform/v1/hosts` returned. */
  token: string;
  /** Replace the identity of a host that is enrolled already. */
  force?: boolean;
}

/**
 * Enrols this host: creates its key and exchanges the token for a host id. The key is stored in
 * `host.pending.json` before it is sent. After a lost reply, the same key can enrol again, and a failed
 * attempt with `force` leaves the old identity unchanged.
 * @throws EnrolmentError
 */
export async function enrol({
  gatewayUrl,
  stateDir,
  token,
  force = false,
}: Enrolment): Promise<HostIdentity> {
  const { enrolment } = gatewayAddress(gatewayUrl);
  const enrolled = await readIdentity(stateDir).catch((error: Error) => {
    if (!force) throw new EnrolledError(error.message);
    return null;
  });
  if (enrolled && !force) {
    throw new EnrolledError(
      `this host is already enrolled as ${enrolled.host_id}: give --force to replace that identity`,
    );
  }
  const pendingFile = join(stateDir, 'host.pending.json');
  const privateKey =
    (await readState(pendingFile, PrivateKey).catch(() => null)) ?? (await makeKey(pendingFile));
  const identity = { host_id: await requestEnrolment(enrolment, token, privateKey), private_key: privateKey };
  await writeIdentity(stateDir, identity);
  await rm(pendingFile);
  return identity;
}

async function makeKey(pendingFile: string): Promise<PrivateKey> {
  const { privateKey } = await generateKeyPair('EdDSA', { crv: 'Ed25519', extractable: true });
  const key = PrivateKey.parse(await exportJWK(privateKey));
  await writeState(pendingFile, key);
  return key;
}

async function requestEnrolment(address: URL, token: string, { kty, crv, x }: PrivateKey): Promise<string> {
  const request: EnrolmentRequest = { enrolment_token: token, public_key: { kty, crv, x } };
  const response = await fetch(address, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(request),
    redirect: 'error',
    signal: AbortSignal.timeout(REPLY_WITHIN_MS),
  }).catch((error: Error) => {
    throw new EnrolmentError(
      `the gateway at ${address.origin} is unreachable (${error.message}): check its address and try again`,
    );
  });
  const refusal = REFUSALS[response.status];
  if (refusal !== undefined) throw new TokenRefusedError(refusal);
  if (!response.ok) {
    throw new EnrolmentError(
      `the gateway responded with status ${response.status}: check its log and try again`,
    );
  }
  const reading = EnrolmentReply.safeParse(await response.json().catch(() => null));
  if (!reading.success)
    throw new EnrolmentError(`${address.origin} is not a branchgate gateway: correct its address`);
  return reading.data.host_id;
}
