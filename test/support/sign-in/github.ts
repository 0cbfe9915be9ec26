import { createHash, randomUUID } from 'node:crypto';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';

interface GitHubPerson {
  id: number;
  login: string;
  emails: { email: string; primary: boolean; verified: boolean }[];
  teams: { organization: string; slug: string }[];
}

/**
 * The authorization and the five reads of GitHub that the gateway uses, with GitHub's habit to report a
 * refused code with the status 200. `person` is who has a session there.
 * @param port left out: a free one
 */
export async function startGitHub(port = 0) {
  const codes = new Map<string, { challenge: string; redirectUri: string; person: GitHubPerson }>();
  const tokens = new Map<string, GitHubPerson>();
  const github = {
    url: '',
    clientId: 'Iv1.gateway',
    secret: 'a secret of the app',
    person: { id: 1, login: 'nobody', emails: [], teams: [] } as GitHubPerson,
    stop: () =>
      new Promise<void>((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };

  function authorize(query: URLSearchParams): string {
    const code = randomUUID();
    const redirectUri = query.get('redirect_uri') ?? '';
    codes.set(code, { challenge: query.get('code_challenge') ?? '', redirectUri, person: github.person });
    const back = new URL(redirectUri);
    back.searchParams.set('code', code);
    back.searchParams.set('state', query.get('state') ?? '');
    return back.href;
  }

  function exchange(form: URLSearchParams): object {
    if (form.get('client_id') !== github.clientId || form.get('client_secret') !== github.secret)
      return { error: 'incorrect_client_credentials' };
    const code = form.get('code') ?? '';
    const grant = codes.get(code);
    codes.delete(code);
    const challenge = createHash('sha256')
      .update(form.get('code_verifier') ?? '')
      .digest('base64url');
    if (!grant || grant.challenge !== challenge || grant.redirectUri !== form.get('redirect_uri'))
      return { error: 'bad_verification_code' };
    const access_token = `gho_${randomUUID()}`;
    tokens.set(access_token, grant.person);
    return { access_token, token_type: 'bearer', scope: 'read:user' };
  }

  function read(path: string, { id, login, emails, teams }: GitHubPerson): object | undefined {
    const organizations = [...new Set(teams.map(({ organization }) => organization))];
    const answers: Record<string, object> = {
      '/api/user': { id, login },
      '/api/user/emails': emails,
      '/api/user/orgs': organizations.map((organization) => ({ login: organization })),
      '/api/user/teams': teams.map(({ organization, slug }) => ({
        slug,
        organization: { login: organization },
      })),
    };
    return answers[path];
  }

  const server = createServer(async (request, response) => {
    let text = '';
    for await (const chunk of request.setEncoding('utf8')) text += chunk;
    const { pathname, searchParams } = new URL(request.url ?? '', github.url);
    if (pathname === '/login/oauth/authorize')
      return response.writeHead(302, { location: authorize(searchParams) }).end();
    const person = tokens.get((request.headers.authorization ?? '').replace('Bearer ', ''));
    const isExchange = pathname === '/login/oauth/access_token';
    const body = isExchange ? exchange(new URLSearchParams(text)) : person && read(pathname, person);
    return response
      .writeHead(body ? 200 : 401, { 'content-type': 'application/json' })
      .end(JSON.stringify(body ?? { message: 'Bad credentials' }));
  });
  await new Promise<void>((resolve) => server.listen(port, '127.0.0.1', resolve));
  github.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  return github;
}

export type StandInGitHub = Awaited<ReturnType<typeof startGitHub>>;
