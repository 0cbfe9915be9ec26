/** Loaded by the commands that need it: it takes a fifth of the start of every other one. */
const acme = () => import('acme-client');

/** What a certificate is ordered with. */
interface Order {
  /** Address of the ACME server's directory (RFC 8555 section 7.1.1). */
  directory: string;
  /** Key of the account, in PEM form. */
  accountKey: string;
  /** The name in the certificate. */
  name: string;
  /** Sets the TXT record of the name to this value; null removes it. */
  setRecord: (value: string | null) => Promise<unknown>;
  /** Whether to wait until the record can be seen from here; only tests skip it. */
  awaitsRecord: boolean;
}

export async function newAccountKey(): Promise<string> {
  const { crypto } = await acme();
  return (await crypto.createPrivateEcdsaKey()).toString();
}

/**
 * Orders a certificate for one name and proves by DNS that it is ours (RFC 8555 section 8.4). The private key
 * is made here and sent nowhere.
 * @returns both in PEM form, the certificate with its chain
 * @throws Error of the ACME server
 */
export async function orderCertificate(order: Order): Promise<{ certificate: string; key: string }> {
  const { directory, accountKey, name, setRecord, awaitsRecord } = order;
  const { Client, crypto } = await acme();
  const client = new Client({ directoryUrl: directory, accountKey });
  const [key, csr] = await crypto.createCsr(
    { commonName: name, altNames: [name] },
    await crypto.createPrivateEcdsaKey(),
  );
  const certificate = await client.auto({
    csr,
    termsOfServiceAgreed: true,
    challengePriority: ['dns-01'],
    skipChallengeVerification: !awaitsRecord,
    challengeCreateFn: async (_authorization, _challenge, value) => setRecord(value),
    challengeRemoveFn: () => setRecord(null),
  });
  return { certificate, key: key.toString() };
}
