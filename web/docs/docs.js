// Without a validator: the file is linted where it is written, and nothing is asked of other hosts.
SwaggerUIBundle({ url: "../openapi.yaml", dom_id: "#reference", deepLinking: true, showExtensions: true, validatorUrl: null });
