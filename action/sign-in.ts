import { getIDToken, setSecret } from '@actions/core';
import { type BranchgateClient, createClient } from '../client/client.ts';
import { ResponseError } from '../client/response-error.ts';
import { ActionError, type Inputs } from './inputs.ts';

const GRANT = {
  grant_type: 'urn:ietf:params:oauth:grant-type:token-exchange',
  subject_token_type: 'urn:ietf:params:oauth:token-type:id_token',
};

/** Workflows of forks get no ID token, so that they cannot act for the repository. */
export const NO_ID_TOKEN =
  'This run gets no ID token, so it gets no branch. A workflow of a fork never gets one; any other workflow needs `permissions: id-token: write`. No other database is used instead.';

/** The exchange of the ID token of this run for an access token (RFC 8693). @throws ActionError */
export async function signIn({ url, project, audience }: Inputs): Promise<BranchgateClient> {
  if (!process.env.ACTIONS_ID_TOKEN_REQUEST_URL) throw new ActionError(NO_ID_TOKEN);
  const subject_token = await getIDToken(audience);
  const response = await fetch(`${url}/api/v1/auth/token`, {
    method: 'POST',
    body: new URLSearchParams({ ...GRANT, subject_token, resource: `${url}/api/v1/projects/${project}` }),
  }).catch(() => {
    throw new ActionError(`${url} is unreachable. Check the input url and the network.`);
  });
  const body = (await response.json().catch(() => ({}))) as Record<string, string>;
  const { access_token: token } = body;
  if (!response.ok || token === undefined)
    throw new ActionError(
      response.status === 400
        ? 'The gateway refused the ID token of this run. Check issuer, audience and claims with `branchgate trust list`.'
        : new ResponseError(response, body).message,
    );
  setSecret(token);
  return createClient({ url, token });
}
