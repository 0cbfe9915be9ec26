import { text } from 'node:stream/consumers';
import type { KoaContextWithOIDC, Provider } from 'oidc-provider';
import { ACCOUNTS, accountOf, LOCAL_PASSWORD } from './accounts.ts';

const PATH = /^\/interaction\/[\w-]+$/;

type Next = () => Promise<unknown>;

/** The login form. Consent is implied, because both clients belong to this service. */
export function loginForm(provider: Provider) {
  return async (ctx: KoaContextWithOIDC, next: Next) => {
    if (!PATH.test(ctx.path)) return next();
    const { prompt } = await provider.interactionDetails(ctx.req, ctx.res);
    if (prompt.name !== 'login') return finish(ctx, { consent: {} });
    if (ctx.method !== 'POST') return render(ctx, '');
    const form = new URLSearchParams(await text(ctx.req));
    const account = accountOf(form.get('email') ?? '');
    if (!account || form.get('password') !== LOCAL_PASSWORD) return render(ctx, 'Wrong e-mail or password.');
    return finish(ctx, { login: { accountId: account.email } });
  };

  async function finish(ctx: KoaContextWithOIDC, result: Record<string, object>) {
    ctx.redirect(await provider.interactionResult(ctx.req, ctx.res, result));
  }
}

function render(ctx: KoaContextWithOIDC, error: string) {
  ctx.type = 'html';
  ctx.status = error ? 401 : 200;
  ctx.body = `<!doctype html>
<meta charset="utf-8">
<title>Sign in</title>
<h1>Local sign-in</h1>
<p role="alert">${error}</p>
<form method="post">
  <label>E-mail <input name="email" list="accounts" autocomplete="username" required autofocus></label>
  <datalist id="accounts">${ACCOUNTS.map(({ email }) => `<option>${email}</option>`).join('')}</datalist>
  <label>Password <input name="password" type="password" autocomplete="current-password" required></label>
  <button>Sign in</button>
</form>
<p>The password of every account is <code>${LOCAL_PASSWORD}</code>.</p>
`;
}
