import { useMutation, useQuery } from '@tanstack/react-query';
import { useState } from 'react';
import { Button } from '../../components/button.tsx';
import { CopyButton } from '../../components/copy.tsx';
import { ErrorNote, Loaded } from '../../components/feedback.tsx';
import { Choice } from '../../components/field.tsx';
import { SIGN_IN_TEXT } from '../../strings/sign-in.ts';
import { CodeField } from './first-factor.tsx';
import { StepForm } from './form.tsx';
import { QrCode } from './qr-code.tsx';
import { nextStep, type Step, signIn } from './steps.ts';

const METHODS = [
  ['totp', SIGN_IN_TEXT.methods.totp],
  ['email', SIGN_IN_TEXT.methods.email],
] as const;

/** The secret for an authenticator app, as a picture and as text. */
function AppSecret({ preAuth }: { preAuth: string }) {
  const secret = useQuery({
    queryKey: ['second-factor-secret', preAuth],
    queryFn: () => signIn.secret(preAuth),
    staleTime: Number.POSITIVE_INFINITY,
    gcTime: 0,
  });
  return (
    <Loaded query={secret}>
      {({ secret, totp_uri }) => (
        <div className="app-secret">
          <QrCode text={totp_uri} label={SIGN_IN_TEXT.qr} />
          <div className="grow">
            <p>{SIGN_IN_TEXT.scan}</p>
            <p className="row secret">
              <code>{secret.match(/.{1,4}/g)?.join(' ')}</code>
              <CopyButton text={secret} label={SIGN_IN_TEXT.copySecret} />
            </p>
          </div>
        </div>
      )}
    </Loaded>
  );
}

export function SetUp({ preAuth, go }: { preAuth: string; go: (step: Step) => void }) {
  const [method, setMethod] = useState<'totp' | 'email'>('totp');
  const skip = useMutation({
    mutationFn: () => signIn.skip(preAuth),
    onSuccess: (login) => go(nextStep(login)),
  });
  const mail = useMutation({ mutationFn: () => signIn.mailCode(preAuth) });
  const choose = (chosen: 'totp' | 'email') => {
    setMethod(chosen);
    if (chosen === 'email' && !mail.isPending && !mail.isSuccess) mail.mutate();
  };
  return (
    <div className="stack">
      <p className="quiet">{SIGN_IN_TEXT.setUpHint}</p>
      <Choice legend={SIGN_IN_TEXT.method} name="method" options={METHODS} value={method} onChange={choose} />
      {method === 'totp' ? (
        <AppSecret preAuth={preAuth} />
      ) : (
        <p role="status">{mail.isSuccess ? SIGN_IN_TEXT.mailSent : SIGN_IN_TEXT.mailing}</p>
      )}
      {mail.isError && <ErrorNote error={mail.error} />}
      {skip.isError && <ErrorNote error={skip.error} />}
      <StepForm
        go={go}
        action={SIGN_IN_TEXT.enrol}
        submit={async (value) => {
          const { recovery_codes: codes } = await signIn.enrol(preAuth, value('code'));
          return { name: 'recovery_codes', codes };
        }}
        more={
          <Button look="bare" compact busy={skip.isPending} onClick={() => skip.mutate()}>
            {SIGN_IN_TEXT.skip}
          </Button>
        }
      >
        <CodeField label={SIGN_IN_TEXT.firstCode} />
      </StepForm>
    </div>
  );
}
