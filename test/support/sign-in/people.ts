import { Api } from '../api.ts';
import { type LoginBody, mailTo, PASSWORD, readCode, type SignInSite, signUp } from './sign-in.ts';

export interface InvitationBody {
  id: string;
  email: string;
  role: string;
}

/** An account with its API and its login. */
export interface TestPerson {
  api: Api;
  email: string;
  userId: string;
  login: LoginBody;
}

export function personOf({ url }: SignInSite, email: string, login: LoginBody): TestPerson {
  if (!login.user) throw new Error(`no tokens: ${JSON.stringify(login)}`);
  return { api: new Api(url, login.access_token), email, userId: login.user.id, login };
}

/** A new account that owns a tenant of its own. The gateway must not ask for a second factor. */
export const newOwner = async (site: SignInSite, email: string) =>
  personOf(site, email, await signUp(site, email));

export const accept = (
  { url }: SignInSite,
  email: string,
  invitation_id: string,
  code: string,
  password = PASSWORD,
) =>
  new Api(url, null).post<LoginBody>('/api/v1/auth/invitations/accept', {
    email,
    invitation_id,
    code,
    name: 'Grace',
    password,
  });

/** Invites an address that has received no mail. @returns the invitation and its code */
export async function inviteAs({ api }: TestPerson, site: SignInSite, email: string, role: string) {
  const { status, body } = await api.post<InvitationBody>('/api/v1/invitations', { email, role });
  if (status !== 201) throw new Error(`${status} ${JSON.stringify(body)}`);
  return { id: body.id, code: readCode(await mailTo(site, email)) };
}

/** A new member of the owner's tenant. */
export async function newMember(owner: TestPerson, site: SignInSite, email: string, role: string) {
  const { id, code } = await inviteAs(owner, site, email, role);
  const { status, body } = await accept(site, email, id, code);
  if (status !== 200) throw new Error(`${status} ${JSON.stringify(body)}`);
  return personOf(site, email, body);
}
