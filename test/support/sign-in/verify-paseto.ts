import { InspectFooter, PublicProtocol } from 'paseto';
import { ImportPublicKeyFactory, VerifyFactory } from 'paseto/v4/public';

const v4 = new PublicProtocol(ImportPublicKeyFactory, VerifyFactory);

export interface KeyDocument {
  keys: { kid: string; alg: string; public_key: `k4.public.${string}` }[];
}

/** Verifies a token with an implementation other than the gateway's. */
export async function verifyPaseto(token: string, { keys }: KeyDocument) {
  const footer = JSON.parse(new TextDecoder().decode(InspectFooter(token))) as { kid: string };
  const key = keys.find(({ kid }) => kid === footer.kid);
  if (!key) throw new Error(`no key ${footer.kid} in the document`);
  const { claims } = await v4.Verify(await v4.ImportPublicKey(key.public_key), token);
  return { claims, footer };
}
